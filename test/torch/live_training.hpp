// SPDX-License-Identifier: Apache-2.0
// A training that goes on in place, for tests that disturb it and compare it with a run that nobody disturbed.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "test/torch/model_support.hpp"

namespace troupe::test {

/// Dropout, batch normalization, momentum, a schedule, a shuffled loader, and values that each rank has of its own;
/// counts how often each sample was used. The config has "folder", "num_epochs" and, if wanted,
///   faults               where to die or throw, see fault()
///   checkpoints          goes on from a checkpoint, and saves one every so many steps
///   ballast              floats that make a checkpoint large
///   step_us              how long a step takes at least
///   waits_at             the step before which all wait until the run was disturbed
///   talks_before_steps   a collective before the loop
Json train_live(const Config& config);

/// A rank dies, or throws, at a place in a step; once. Two of one step behind its last exchange happen together.
Json fault(int rank, std::int64_t step, const char* when);

struct LiveRun {
  int workers = 2;
  Json faults = Json::array();
  Json config = Json::object();
  int num_epochs = 2;
  bool shared_memory = true;
  TrainerOptions options = {.retry_user_errors = true};
};

struct Outcome {
  std::vector<Json> results;
  std::vector<std::vector<Json>> rounds;
  std::vector<ResultInfo> infos;
  std::vector<Json> decisions;
  std::optional<Checkpoint> checkpoint;
  int attempts = 0;
};

/// May disturb the trainer at every round; true once it has: see "waits_at".
using Disturbance = std::function<bool(Trainer&, const ResultInfo&)>;
Outcome train_with(const LiveRun& run, const Disturbance& during = {});

/// The result of the run in which nobody dies.
void check_same(const Outcome& outcome, const LiveRun& run);
/// The same without a second attempt: only `lost` ranks began in the middle, and every round came, once.
void check_live(const Outcome& outcome, const LiveRun& run, const std::set<int>& lost);

}  // namespace troupe::test
