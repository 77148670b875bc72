// SPDX-License-Identifier: Apache-2.0
#include "runtime/driver_environment.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "actors/node/node.hpp"

namespace troupe::detail {
namespace {

std::map<std::string, std::string> parse(const std::vector<std::string>& entries) {
  std::map<std::string, std::string> variables;
  for (const auto& entry : entries)
    if (const auto equals = entry.find('='); equals != std::string::npos)
      variables[entry.substr(0, equals)] = entry.substr(equals + 1);
  return variables;
}

}  // namespace

std::vector<std::string> environment_for_workers(int threads) {
  std::vector<std::string> now_entries;
  for (char** entry = environ; entry && *entry; ++entry) now_entries.emplace_back(*entry);
  const auto now = parse(now_entries);
  const auto then = parse(node::environment_at_init());
  std::vector<std::string> changes;
  for (const auto& [name, value] : now)
    if (const auto old = then.find(name); old == then.end() || old->second != value)
      changes.push_back(name + "=" + value);
  for (const auto& [name, value] : then)
    if (!now.contains(name)) changes.push_back(name);
  if (!now.contains("OMP_NUM_THREADS")) changes.push_back(fmt::format("OMP_NUM_THREADS={}", threads));
  return changes;
}

std::string current_directory() {
  std::error_code error;
  return std::filesystem::current_path(error).string();
}

bool wants_detailed_metrics() {
  for (const char* prefix : {"TROUPE", "TRAIN", "SGD"}) {
    const auto name = fmt::format("{}_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS", prefix);
    if (const char* value = std::getenv(name.c_str()); value && std::string_view(value) == "1") return true;
  }
  return false;
}

}  // namespace troupe::detail
