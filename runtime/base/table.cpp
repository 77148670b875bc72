// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/table.hpp"

#include <algorithm>
#include <string_view>

namespace troupe::detail {
namespace {

/// Characters, not bytes: UTF-8's continuation bytes take no room.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string format_table(std::vector<std::string> header, std::vector<std::vector<std::string>> rows) {
  rows.insert(rows.begin(), std::move(header));
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += row[i] + std::string(widths[i] - width_of(row[i]) + 2, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace troupe::detail
