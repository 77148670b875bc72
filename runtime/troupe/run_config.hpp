// SPDX-License-Identifier: Apache-2.0
// How a run is set up and what it gives back, in the names of newer Ray (AIR): what TorchTrainer is made of.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <troupe/callback.hpp>
#include <troupe/checkpoint.hpp>
#include <troupe/checkpoint_strategy.hpp>
#include <troupe/error.hpp>
#include <troupe/json.hpp>
#include <troupe/options.hpp>
#include <troupe/run_results.hpp>

namespace troupe {

/// How many workers, and what each of them gets.
struct ScalingConfig {
  /// A number, or a range: `{2, 4}`. 0 runs the function in the caller's thread (local mode).
  WorkerCount num_workers = 1;
  /// One GPU a worker.
  bool use_gpu = false;
  /// As TrainerOptions::resources_per_worker.
  Resources resources_per_worker = {};
  Placement placement = Placement::process;
};

/// What is done about failures.
struct FailureConfig {
  /// How often the function runs again after a lost worker, and how often after an exception of its own; -1: no limit.
  int max_failures = 0;
  /// As TrainerOptions::retry_policy: when a run that keeps failing is given up before that.
  RetryPolicy retry_policy = {};
  /// As TrainerOptions::spares: workers that stand by.
  int spares = 0;
  /// As TrainerOptions::progress_deadline: a rank that hangs this long counts as lost; 0: never.
  std::chrono::milliseconds progress_deadline = std::chrono::milliseconds(0);
};

/// Which checkpoints are kept: num_to_keep, checkpoint_score_attribute, checkpoint_score_order.
using CheckpointConfig = CheckpointStrategy;

struct RunConfig {
  /// The folder of the run inside `storage_path`; default train_<date>. Runs of equal names share it, each with a
  /// run_001, run_002 ... of its own.
  std::string name = {};
  /// Absolute, or relative to ~/troupe_results, which is the default. "s3://bucket/prefix?endpoint=...": checkpoints
  /// are also brought there (RunOptions::storage_path), files stay in ~/troupe_results.
  std::string storage_path = {};
  FailureConfig failure_config = {};
  CheckpointConfig checkpoint_config = {};
  std::vector<std::shared_ptr<TrainingCallback>> callbacks = {};
  /// fit() goes on with the latest run of this name, in its folder: a program that is started again continues what it
  /// was at. Without an earlier run this is an ordinary one. Needs a name.
  bool resume = false;
};

/// What a run has come to.
struct Result {
  /// The last metrics that rank 0 reported, with the autofilled ones; `{}` if it reported none.
  Json metrics = Json::object();
  /// The latest checkpoint, or the one that the run was given; nothing without both.
  std::optional<Checkpoint> checkpoint = {};
  /// Those that are kept, best first, each with the metrics that were reported with it.
  std::vector<std::pair<Checkpoint, Json>> best_checkpoints = {};
  /// The run's folder.
  std::filesystem::path path = {};
  /// Why the run failed. Filled by fit(std::nothrow) alone: fit() throws it.
  std::optional<Error> error = {};
  /// What the function returned, in rank order; empty if the run failed.
  RunResults returns = {};
  /// Saves that failed, and what went wrong with checkpoints that are safe.
  std::vector<std::string> checkpoint_errors = {};
};

}  // namespace troupe
