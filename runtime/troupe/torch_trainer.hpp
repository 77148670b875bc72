// SPDX-License-Identifier: Apache-2.0
// The newer front door of Ray Train: everything is said in the constructor, fit() does the rest. A thin layer over
// Trainer. Programs that use it link troupe::torch.
#pragma once

#include <filesystem>
#include <new>

#include <troupe/fn.hpp>
#include <troupe/run_config.hpp>
#include <troupe/torch_config.hpp>
#include <troupe/trainer.hpp>

namespace troupe {

struct TorchTrainerOptions {
  /// Handed to the function on every worker. An object; omitted: `{}`.
  Json train_loop_config = {};
  TorchConfig torch_config = {};
  ScalingConfig scaling_config = {};
  RunConfig run_config = {};
  /// What load_checkpoint() gives before the function has saved one: the checkpoint of another Result, say.
  StartCheckpoint resume_from_checkpoint = {};
};

class TorchTrainer {
public:
  /// Refuses bad options with the list of valid values, and makes the folder of the run. Starts nothing.
  explicit TorchTrainer(Fn train_loop, TorchTrainerOptions options = {});

  /// Starts the workers, runs the function, ends the workers. Throws what Trainer::run() throws: TrainingFailed,
  /// Interrupted, or another Error. May be called again: a new run of the same things (with RunConfig::resume, the same
  /// run goes on).
  Result fit();
  /// The same, but a failure is Result::error, beside the metrics up to it. Interrupted is thrown all the same.
  Result fit(std::nothrow_t);

  /// The folder in which runs have theirs.
  const std::filesystem::path& logdir() const { return trainer_.logdir(); }

private:
  void run(Result& result);

  Fn train_loop_;
  RunOptions run_options_;
  Trainer trainer_;
};

}  // namespace troupe
