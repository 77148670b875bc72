// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/host.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

namespace troupe::detail {
namespace {

bool is_outward(const ifaddrs& entry) {
  return entry.ifa_addr != nullptr && entry.ifa_addr->sa_family == AF_INET && (entry.ifa_flags & IFF_UP) != 0 &&
         (entry.ifa_flags & IFF_LOOPBACK) == 0;
}

/// /dev/nvidia0, /dev/nvidia1 ...; not /dev/nvidiactl.
int count_gpu_devices() {
  namespace fs = std::filesystem;
  constexpr std::string_view prefix = "nvidia";
  std::error_code ignored;
  int count = 0;
  for (fs::directory_iterator it("/dev", ignored), end; !ignored && it != end; it.increment(ignored)) {
    auto name = it->path().filename().string();
    if (name.size() <= prefix.size() || !name.starts_with(prefix)) continue;
    count += std::all_of(name.begin() + prefix.size(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
  }
  return count;
}

/// An index is visible if it exists; names (GPU-..., MIG-...) are believed.
bool is_visible_entry(std::string_view entry, int devices) {
  entry.remove_prefix(std::min(entry.find_first_not_of(' '), entry.size()));
  int index = 0;
  auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error == std::errc{}) return index >= 0 && index < devices;
  return entry.starts_with("GPU-") || entry.starts_with("MIG-");
}

int cores_in_mask() {
  // The kernel refuses a mask that is too small for its number of cores, so grow until it fits.
  for (int cores = 1024; cores <= (1 << 18); cores *= 2) {
    std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(cores), [](cpu_set_t* p) { CPU_FREE(p); });
    const auto size = CPU_ALLOC_SIZE(cores);
    if (set && ::sched_getaffinity(0, size, set.get()) == 0) return std::max(1, CPU_COUNT_S(size, set.get()));
  }
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

std::string node_ip() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "127.0.0.1";
  std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const auto* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!is_outward(*entry)) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    if (::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) != nullptr) return text.data();
  }
  return "127.0.0.1";
}

std::optional<int> cpu_quota(const std::filesystem::path& membership, const std::filesystem::path& root) {
  std::filesystem::path group;  // below the root
  std::ifstream lines(membership);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("0::/")) group = std::filesystem::path(line.substr(4)).lexically_normal();
  // A container may be told a path that starts above what is mounted there.
  if (!group.empty() && *group.begin() == "..") group.clear();
  std::optional<int> least;
  for (;; group = group.parent_path()) {
    double quota = 0;  // microseconds in each period; "max" is no limit
    double period = 0;
    if (std::ifstream(root / group / "cpu.max") >> quota >> period; quota > 0 && period > 0) {
      const int cores = static_cast<int>(std::ceil(std::min(quota / period, 1e6)));
      least = std::min(least.value_or(cores), cores);
    }
    if (group.empty()) return least;
  }
}

int core_count() {
  const int cores = cores_in_mask();
  return std::min(cores, cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup").value_or(cores));
}

int count_visible_gpus(std::optional<std::string_view> visible, int devices) {
  if (!visible || devices == 0) return devices;
  int count = 0;
  auto rest = *visible;
  while (true) {
    const auto comma = rest.find(',');
    if (!is_visible_entry(rest.substr(0, comma), devices)) return count;
    ++count;
    if (comma == std::string_view::npos) return count;
    rest.remove_prefix(comma + 1);
  }
}

int gpu_count() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return count_visible_gpus(visible ? std::optional<std::string_view>(visible) : std::nullopt, count_gpu_devices());
}

}  // namespace troupe::detail
