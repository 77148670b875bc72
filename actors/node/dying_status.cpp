// SPDX-License-Identifier: Apache-2.0
#include "actors/node/dying_status.hpp"

#include <poll.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <fmt/core.h>

namespace troupe::node {

namespace {

constexpr int first_field_behind_name = 3;
constexpr int status_field = 52;  // "exit_code" of proc(5)

/// The name may hold spaces and brackets.
std::string field_behind_name(const std::string& line, int number) {
  const auto end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) {
    return "";
  }
  std::istringstream fields(line.substr(end_of_name + 1));
  std::string field;
  for (int i = first_field_behind_name; i <= number; ++i) {
    if (!(fields >> field)) {
      return "";
    }
  }
  return field;
}

bool is_dead(int pidfd) {
  ::pollfd entry{pidfd, POLLIN, 0};
  return ::poll(&entry, 1, 0) != 0;
}

}  // namespace

std::optional<int> dying_status(pid_t pid, int pidfd) {
  if (pidfd < 0) {
    return std::nullopt;
  }
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);  // of one who is gone: nothing
  // Only now: as long as it lives, its number is its own.
  if (is_dead(pidfd)) {
    return std::nullopt;
  }
  const int status = std::atoi(field_behind_name(line, status_field).c_str());
  return status != 0 ? std::optional(status) : std::nullopt;
}

}  // namespace troupe::node
