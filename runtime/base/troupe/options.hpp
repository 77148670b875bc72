// SPDX-License-Identifier: Apache-2.0
// What a Trainer is made of. Fields stand in Ray's argument order, then ours; new ones are only appended.
#pragma once

#include <chrono>
#include <concepts>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <troupe/json.hpp>

namespace troupe {

/// Where workers live.
enum class Placement {
  process,  ///< a process each (default): own memory, own environment, own death
  thread,   ///< a thread each, inside this process: embedding, debugging
};

/// Which backend sets the workers up, with its settings. Empty: none, workers form no group.
/// Made from a name (`"torch"`) or from a config object that has `BackendConfig to_backend_config() const`.
struct BackendConfig {
  std::string name;
  Json options = Json::object();

  BackendConfig() = default;
  BackendConfig(const char* backend_name) : name(backend_name) {}             // NOLINT(google-explicit-constructor)
  BackendConfig(std::string backend_name) : name(std::move(backend_name)) {}  // NOLINT(google-explicit-constructor)
  BackendConfig(std::string backend_name, Json backend_options)
      : name(std::move(backend_name)), options(std::move(backend_options)) {}
  template <class T>
    requires requires(const T& config) {
      { config.to_backend_config() } -> std::same_as<BackendConfig>;
    }
  BackendConfig(const T& config)  // NOLINT(google-explicit-constructor)
      : BackendConfig(config.to_backend_config()) {}
};

/// As many as there is room for: `.num_workers = {1, troupe::inf}`.
inline constexpr int inf = std::numeric_limits<int>::max();

/// How many workers: a number, or a range within which the group may shrink and grow: `4`, `{2, 4}`.
struct WorkerCount {
  std::optional<int> min = {};
  std::optional<int> max = {};

  WorkerCount() = default;
  WorkerCount(int count) : min(count), max(count) {}  // NOLINT(google-explicit-constructor)
  WorkerCount(int least, int most) : min(least), max(most) {}
  explicit operator bool() const { return min.has_value(); }
  bool operator==(const WorkerCount&) const = default;
};

/// Amounts by resource name: "CPU", "GPU" (case sensitive) and any of the user's own.
using Resources = std::map<std::string, double>;

/// When a run that keeps failing is given up, beside max_retries. Progress is a round that no attempt had come to
/// before, a committed checkpoint, or a step committed in place.
struct RetryPolicy {
  /// So many restarts within the window, or in a row, of attempts that died at once, before their first round, are a
  /// crash loop.
  int crash_loop_restarts = 5;
  std::chrono::milliseconds crash_loop_window = std::chrono::seconds(60);
  /// So many restarts in a row without progress end the run; -1: no limit.
  int restarts_without_progress = 3;
  /// Pause before the second restart without progress; it doubles up to the longest.
  std::chrono::milliseconds first_delay = std::chrono::milliseconds(100);
  std::chrono::milliseconds longest_delay = std::chrono::seconds(10);
};

struct TrainerOptions {
  /// Backend by name or config object; omit for workers without a process group.
  BackendConfig backend = {};
  /// Number of workers; 0 runs the function in the caller's thread (local mode). Default 1. A range `{min, max}` makes
  /// the run elastic: it starts with as many as the cores have room for, goes on with fewer when one cannot be
  /// replaced, and grows again when there is room.
  WorkerCount num_workers = {};
  /// One GPU a worker.
  bool use_gpu = false;
  /// "CPU" defaults to the cores divided by the workers (at least 1), "GPU" to 1 with use_gpu.
  Resources resources_per_worker = {};
  /// Absolute, or relative to ~/troupe_results; default ~/troupe_results/train_<date>. Made by the constructor.
  std::filesystem::path logdir = {};
  /// How often a run is started again after a lost worker; -1: no limit.
  int max_retries = 3;

  /// Processes or threads.
  Placement placement = Placement::process;
  /// Workers must be up within it, and their group formed within another; a worker that dies meanwhile is tried again,
  /// with time of its own.
  std::chrono::milliseconds worker_start_deadline = std::chrono::seconds(60);
  /// A worker asked to stop gets this long until it is ended; not when it only writes checkpoints that it saved, but
  /// for those of a run that shutdown() cuts off.
  std::chrono::milliseconds shutdown_deadline = std::chrono::seconds(5);
  /// A rank that is out of credit and waits this long for reports of other ranks ends the run.
  std::chrono::milliseconds report_deadline = std::chrono::seconds(60);
  /// Also run again when the function threw.
  bool retry_user_errors = false;
  /// Workers that stand by, ready to take the place of a lost one (process placement).
  int spares = 0;

  /// A worker that gets SIGTERM is replaced after this long, or when its function returns: train::preemption_notice().
  std::chrono::milliseconds preemption_grace = std::chrono::seconds(25);
  /// When a run that keeps failing is given up.
  RetryPolicy retry_policy = {};

  // The API review's spellings of the above; giving both with different values is refused.
  std::optional<int> workers = {};
  std::optional<double> cpus_per_worker = {};
  std::optional<double> gpus_per_worker = {};
  std::optional<BackendConfig> backend_args = {};

  /// A worker that is stopped (SIGSTOP) this long counts as lost; 0: at once.
  std::chrono::milliseconds stopped_grace = std::chrono::seconds(2);
  /// How often workers are asked whether they live and where they stand.
  std::chrono::milliseconds ping_interval = std::chrono::seconds(1);
  /// A worker process that does not answer this long counts as lost; 0: it may be silent (in a debugger, say).
  std::chrono::milliseconds ping_deadline = std::chrono::seconds(10);
  /// A rank without a report, save, collective or step for this long, while others wait for it, counts as lost; a
  /// warning comes at half of it. 0: a function may take as long as it likes.
  std::chrono::milliseconds progress_deadline = std::chrono::milliseconds(0);
  /// Replace a worker whose rounds take 1.5 times as long as those of the others, once a run. It is reported anyway.
  bool replace_stragglers = false;
  /// When a worker was lost and the function goes on in place: how long the step of another one may still compute until
  /// that worker is replaced, too.
  std::chrono::milliseconds rejoin_deadline = std::chrono::seconds(60);
};

}  // namespace troupe
