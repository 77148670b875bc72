// SPDX-License-Identifier: Apache-2.0
// What a Trainer does at the moment.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include <fmt/ostream.h>

namespace troupe {

/// One worker, as the driver knows it.
struct WorkerStatus {
  int rank = 0;
  int pid = -1;            ///< -1: there is no process at the moment
  std::string state = {};  ///< "starting", "ready", "forming", "running", "held" (waits for a new group), "lost"
  std::int64_t round = 0;  ///< the last one it has reported in the current run
  std::int64_t step =
      -1;  ///< the last one it has made, of a function that goes on in place (train::Recoverable); -1: none
  double slowdown = 0;  ///< of a straggler: 1.8, its rounds take 1.8 times as long as those of the others; else 0
};

/// How often the current run was started again, or went on in place, by cause.
struct RestartStatus {
  int lost_workers = 0;
  int user_errors = 0;
  int preemptions = 0;
};

/// What Trainer::status() gives: a moment's picture.
struct TrainerStatus {
  /// "not started", "idle" (no run), "running", "waiting" (for the next attempt), "stopping".
  std::string state = "not started";
  int world_size = 0;
  /// Of the current run, or the latest one: 1-based attempt, the last round that is complete, and the number that tells
  /// this attempt's messages and checkpoints from all others (upper half: programs that have driven the run).
  int attempt = 0;
  std::int64_t round = 0;
  std::uint64_t generation = 0;
  RestartStatus restarts = {};
  std::vector<WorkerStatus> workers = {};

  /// A line, and a table of workers.
  std::string to_string() const;
};

std::ostream& operator<<(std::ostream& out, const TrainerStatus& status);

}  // namespace troupe

template <>
struct fmt::formatter<troupe::TrainerStatus> : fmt::ostream_formatter {};
