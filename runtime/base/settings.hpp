// SPDX-License-Identifier: Apache-2.0
// TrainerOptions after all checks: aliases merged, defaults filled in. Everything behind the facade reads these.
#pragma once

#include <algorithm>
#include <chrono>

#include <troupe/options.hpp>

namespace troupe::detail {

struct Settings {
  BackendConfig backend;
  int world_size = 1;  ///< at the start; 0: local mode
  int min_workers = 1;
  int max_workers = 1;
  int spares = 0;
  bool use_gpu = false;
  Resources resources;  ///< of one worker, always with "CPU" and "GPU"
  int threads_per_worker = 1;
  int max_retries = 3;  ///< -1: no limit
  Placement placement = Placement::process;
  std::chrono::milliseconds worker_start_deadline{};
  std::chrono::milliseconds shutdown_deadline{};
  std::chrono::milliseconds report_deadline{};
  bool retry_user_errors = false;
  std::chrono::milliseconds stopped_grace{};
  std::chrono::milliseconds ping_interval{};
  std::chrono::milliseconds ping_deadline{};      ///< 0: none
  std::chrono::milliseconds progress_deadline{};  ///< 0: none
  bool replace_stragglers = false;
  std::chrono::milliseconds preemption_grace{};
  std::chrono::milliseconds rejoin_deadline{};
  RetryPolicy retry_policy;

  bool local_mode() const { return world_size == 0; }
};

inline constexpr int max_workers = 4096;

/// Longer means "never"; clamped so that now + deadline cannot overflow.
inline constexpr std::chrono::milliseconds longest_deadline = std::chrono::hours(24 * 365);
/// A duration that the caller of a function gave.
constexpr std::chrono::milliseconds bounded(std::chrono::milliseconds given) {
  return std::clamp(given, std::chrono::milliseconds::zero(), longest_deadline);
}

/// Throws invalid_option that names the option, the value given and the valid ones. Whether the backend exists
/// and takes its options is not checked here (require_backend() does).
Settings resolve_settings(const TrainerOptions& options);

}  // namespace troupe::detail
