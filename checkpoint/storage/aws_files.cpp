// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/aws_files.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include <troupe/error.hpp>

#include "runtime/base/system_error.hpp"

namespace troupe::storage {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view blanks = " \t\r";

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

fs::path file_from(const char* variable, const char* in_home) {
  if (const char* given = std::getenv(variable); given != nullptr && *given != '\0') return given;
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? fs::path(home) / in_home : fs::path();
}

}  // namespace

AwsProfile read_aws_section(const fs::path& file, const std::string& section, bool& found) {
  AwsProfile keys;
  std::error_code failure;
  if (file.empty() || !fs::exists(file, failure)) return keys;
  std::ifstream in(file);
  if (!in) throw detail::io_error("cannot read the file", file, errno);
  bool inside = false;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const bool nested = !line.empty() && blanks.find(line.front()) != std::string_view::npos;
    const auto text = trim(line);
    if (text.empty() || text.front() == '#' || text.front() == ';' || nested) continue;
    const auto equals = text.find('=');
    if (text.front() == '[' && text.back() == ']') {
      inside = trim(text.substr(1, text.size() - 2)) == section;
      found = found || inside;
    } else if (equals == std::string_view::npos) {
      throw Error(ErrorCode::invalid_option,
                  fmt::format("{}:{}: neither a [section] nor name = value", file.string(), number));
    } else if (inside) {
      keys.insert_or_assign(std::string(trim(text.substr(0, equals))), std::string(trim(text.substr(equals + 1))));
    }
  }
  return keys;
}

AwsProfile read_aws_profile() {
  const char* variable = std::getenv("AWS_PROFILE");
  const bool asked_for = variable != nullptr && *variable != '\0';
  const std::string profile = asked_for ? variable : "default";
  const auto credentials = file_from("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
  const auto config = file_from("AWS_CONFIG_FILE", ".aws/config");
  bool found = false;
  auto keys = read_aws_section(credentials, profile, found);
  keys.merge(read_aws_section(config, profile == "default" ? profile : "profile " + profile, found));
  if (asked_for && !found)
    throw Error(ErrorCode::invalid_option,
                fmt::format("AWS_PROFILE is \"{}\", but neither {} has [{}] nor {} has [profile {}]", profile,
                            credentials.string(), profile, config.string(), profile));
  return keys;
}

}  // namespace troupe::storage
