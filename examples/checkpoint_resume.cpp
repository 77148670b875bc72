// SPDX-License-Identifier: Apache-2.0
// Three ways to go on: after a worker died, from a checkpoint that run() is given, and in the folder of an earlier run.
//
//   build/bin/checkpoint_resume
//
// Output: after a lost worker: epochs 2 to 3, checkpoint 4
// Output: from a checkpoint: epochs 4 to 5, checkpoint 2
// Last line: restored: epochs 6 to 7, checkpoint 4
#include <csignal>
#include <iostream>

#include <unistd.h>
#include <CLI/CLI.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

// Returns the first and the last epoch of the attempt that ended well.
troupe::Json train_func(const troupe::Config& config) {
  int epoch = 0;
  if (auto checkpoint = train::load_checkpoint()) epoch = checkpoint->at<int>("epoch") + 1;
  const int first = epoch;
  for (; epoch < config["num_epochs"]; ++epoch) {
    // The worst that can happen, in the middle of the first attempt. The worker is replaced, the function runs again.
    if (config.value("die_at", -1) == epoch && first == 0) {
      train::flush_checkpoints();
      if (train::world_rank() == 1) ::kill(::getpid(), SIGKILL);
      train::wait_for_stop();
    }
    train::report({{"epoch", epoch}}, {{"epoch", epoch}});
  }
  return {{"first", first}, {"last", epoch - 1}};
}

void print(const char* name, const std::vector<troupe::Json>& results, const troupe::Trainer& trainer) {
  std::cout << name << ": epochs " << results[0]["first"] << " to " << results[0]["last"] << ", checkpoint "
            << trainer.latest_checkpoint()->at<int>("_current_checkpoint_id") << "\n";
}

int run(int argc, char** argv) {
  CLI::App app("Goes on from checkpoints");
  parse_flags(app, argc, argv);

  std::filesystem::path run_dir;
  {
    troupe::Trainer trainer({.num_workers = 2});
    auto results = trainer.run(troupe::fn<train_func>, {.config = {{"num_epochs", 4}, {"die_at", 2}}});
    print("after a lost worker", results, trainer);

    results =
        trainer.run(troupe::fn<train_func>, {.config = {{"num_epochs", 6}}, .checkpoint = trainer.latest_checkpoint()});
    print("from a checkpoint", results, trainer);
    run_dir = trainer.latest_run_dir();
  }
  // Another program, perhaps another day; the run's own folder, so checkpoint ids go on too.
  auto trainer = troupe::Trainer::restore(run_dir);
  auto results = trainer.run(troupe::fn<train_func>, {.config = {{"num_epochs", 8}}});
  print("restored", results, trainer);
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
