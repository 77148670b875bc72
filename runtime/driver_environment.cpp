// SPDX-License-Identifier: Apache-2.0
#include "runtime/driver_environment.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
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

/// A port that nobody uses now. For code that reads MASTER_PORT: troupe itself never opens it.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool found = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (fd >= 0) ::close(fd);
  return found ? ntohs(address.sin_port) : 29500;  // the one that torchrun takes
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
      changes.push_back(fmt::format("{}={}", name, value));
  for (const auto& [name, value] : then)
    if (!now.contains(name)) changes.push_back(name);
  if (!now.contains("OMP_NUM_THREADS")) changes.push_back(fmt::format("OMP_NUM_THREADS={}", threads));
  if (!now.contains("MASTER_ADDR")) changes.push_back("MASTER_ADDR=127.0.0.1");
  if (!now.contains("MASTER_PORT")) changes.push_back(fmt::format("MASTER_PORT={}", free_port()));
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
