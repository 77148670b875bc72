// SPDX-License-Identifier: Apache-2.0
// The interface of callbacks: what the driver does with the reports of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include <troupe/json.hpp>

namespace troupe {

/// What start_training() is told.
struct TrainingInfo {
  std::filesystem::path logdir = {};  ///< the run's folder
  Json config = {};
  int world_size = 0;
};

/// What comes with a round.
struct ResultInfo {
  int attempt = 1;  ///< 1, and one more after each restart
  /// 1-based. A function that went on from a checkpoint counts on from there, and rounds that were shown before it
  /// failed are not shown again; one without checkpoints begins at 1 again, with a higher attempt.
  std::int64_t round = 0;
  int world_size = 0;
  std::function<void()> stop = [] {};  ///< ends the run in good order; run() returns
};

/// Called in the order given, on a thread of their own, never two at once. An exception ends the run with its text.
class TrainingCallback {
public:
  virtual ~TrainingCallback() = default;
  /// Once, before any worker runs the function.
  virtual void start_training(const TrainingInfo& /*info*/) {}
  /// One list a round, in rank order. Its length may differ between rounds.
  virtual void handle_result(const std::vector<Json>& /*results*/, const ResultInfo& /*info*/) {}
  /// Once, if start_training() was called; `error` is true unless the run ended well.
  virtual void finish_training(bool /*error*/) {}
};

}  // namespace troupe
