// SPDX-License-Identifier: Apache-2.0
// Checkpoints: a function saves its state after every epoch, the driver has the latest one and finds all on disk.
//
//   build/bin/checkpoint_save_load [--num-workers 2] [--num-epochs 5]
//
// Output: \{"epoch":4,"model":10,"_timestamp":\d+,"_current_checkpoint_id":5\}
// Output: /.*/run_001/checkpoints
// Output: checkpoint_000001
// Output: checkpoint_000002
// Output: checkpoint_000003
// Output: checkpoint_000004
// Output: checkpoint_000005
// Last line: best: checkpoint_000005
#include <algorithm>
#include <iostream>
#include <vector>

#include <CLI/CLI.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

// Goes on where the latest checkpoint was: after a failure, or with the one that run() was given.
void train_func(const troupe::Config& config) {
  int epoch = 0;
  int model = 0;
  if (auto checkpoint = train::load_checkpoint()) {
    epoch = checkpoint->at<int>("epoch") + 1;
    model = checkpoint->at<int>("model");
  }
  for (; epoch < config["num_epochs"]; ++epoch) {
    model += epoch;
    train::save_checkpoint({{"epoch", epoch}, {"model", model}});  // all ranks call it; rank 0's state is kept
  }
}

int run(int argc, char** argv) {
  int num_workers = 2;
  int num_epochs = 5;
  CLI::App app("Saves checkpoints and looks at them");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  app.add_option("--num-epochs", num_epochs, "Epochs, one checkpoint each")->capture_default_str();
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.num_workers = num_workers});
  trainer.run(troupe::fn<train_func>, {.config = {{"num_epochs", num_epochs}}});
  trainer.shutdown();  // what was saved stays readable

  if (auto latest = trainer.latest_checkpoint()) std::cout << *latest << "\n";
  std::cout << trainer.latest_checkpoint_dir().string() << "\n";
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(trainer.latest_checkpoint_dir()))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  for (const auto& name : names) std::cout << "  " << name << "\n";
  std::cout << "best: " << trainer.best_checkpoint_path().filename().string() << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
