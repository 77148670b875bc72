// SPDX-License-Identifier: Apache-2.0
// What a Trainer is made of. Fields stand in Ray's argument order, then ours; new ones are only appended.
#pragma once

#include <chrono>
#include <concepts>
#include <filesystem>
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

/// Amounts by resource name: "CPU", "GPU" (case sensitive) and any of the user's own.
using Resources = std::map<std::string, double>;

struct TrainerOptions {
  /// Backend by name or config object; omit for workers without a process group.
  BackendConfig backend = {};
  /// Number of workers; 0 runs the function in the caller's thread (local mode). Default 1.
  std::optional<int> num_workers = {};
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
  /// All workers must be up this long after start().
  std::chrono::milliseconds worker_start_deadline = std::chrono::seconds(60);
  /// A worker asked to stop gets this long until it is killed.
  std::chrono::milliseconds shutdown_deadline = std::chrono::seconds(5);
  /// A rank whose reports wait this long for those of other ranks ends the run.
  std::chrono::milliseconds report_deadline = std::chrono::seconds(60);
  /// Also run again when the function threw.
  bool retry_user_errors = false;

  // The API review's spellings of the above; giving both with different values is refused.
  std::optional<int> workers = {};
  std::optional<double> cpus_per_worker = {};
  std::optional<double> gpus_per_worker = {};
  std::optional<BackendConfig> backend_args = {};
};

}  // namespace troupe
