// SPDX-License-Identifier: Apache-2.0
// The trainer of the first RaySGD: made from creators (<troupe/torch_creators.hpp>), each train() is one pass over the
// data. A thin layer over Trainer: workers that are lost inside a pass are replaced, and the pass goes on in place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <troupe/checkpoint.hpp>
#include <troupe/json.hpp>
#include <troupe/torch_config.hpp>
#include <troupe/trainer.hpp>
#include <troupe/training_pass.hpp>

namespace troupe {

struct PyTorchTrainerOptions {
  /// Given to the creators. An object; omitted: `{}`.
  Json config = {};
  /// Workers; a range `{min, max}` goes on with fewer when one cannot be replaced, and grows again.
  WorkerCount num_replicas = 1;
  bool use_gpu = false;
  /// Of all workers together: each takes its part, also when their number changes.
  std::int64_t batch_size = 16;
  TorchConfig backend = {};
  /// As TrainerOptions::logdir.
  std::filesystem::path logdir = {};
  Resources resources_per_worker = {};
};

struct PassOptions {
  /// How often workers may be lost in this pass.
  int max_retries = 0;
  /// "auto": the state before the pass is kept, and a pass that must begin again begins there. A path: it is also
  /// saved there. Empty: refused together with retries.
  std::string checkpoint = "auto";
};

class PyTorchTrainer {
public:
  /// Refuses bad options. Workers start with the first pass.
  explicit PyTorchTrainer(TrainingPass pass, PyTorchTrainerOptions options = {});
  ~PyTorchTrainer();

  /// One pass over the training data. Gives "epoch", "batch_count", "train_loss", ..., each the mean over the workers
  /// that have a number. Throws TrainingFailed when the retries are used up; the state is then that before the pass.
  Json train(const PassOptions& options = {});
  /// One pass over the validation data: "validation_loss", "num_samples".
  Json validate();

  /// The state of model, optimizer and data order, on disk. An earlier one in that folder is replaced, at once: a whole
  /// one is there at any time. Throws io when something else is there.
  void save(const std::filesystem::path& folder) const;
  void load(const std::filesystem::path& folder);
  /// Empty before the first pass.
  const std::optional<Checkpoint>& state() const { return state_; }

  void shutdown();

private:
  Trainer& trainer(int max_retries);
  std::int64_t next_pass() const;
  Json run(const Fn& function, int max_retries);

  TrainingPass pass_;
  PyTorchTrainerOptions options_;
  std::unique_ptr<Trainer> trainer_;
  int max_retries_ = 0;
  std::optional<Checkpoint> state_;
};

}  // namespace troupe
