// SPDX-License-Identifier: Apache-2.0
// What this host is and has. Nothing here looks a name up or touches the network.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::detail {

std::string host_name();
/// IPv4 address of the first interface that is up and not loopback; 127.0.0.1 if there is none.
std::string node_ip();
/// Cores this process may run on (taskset and limits of containers count), at least 1.
int core_count();
/// NVIDIA devices that a program started here would see.
int gpu_count();

/// How many cores' time cgroups (version 2) leave a process, rounded up; none without a limit. `membership` is its
/// /proc/self/cgroup, `root` what is mounted at /sys/fs/cgroup.
std::optional<int> cpu_quota(const std::filesystem::path& membership, const std::filesystem::path& root);

/// gpu_count() as CUDA counts: `visible` is CUDA_VISIBLE_DEVICES if set; the list ends at the first wrong entry.
int count_visible_gpus(std::optional<std::string_view> visible, int devices);

}  // namespace troupe::detail
