// SPDX-License-Identifier: Apache-2.0
// Reports as a loop: the driver takes one round at a time, and may leave the loop when it has seen enough.
//
//   build/bin/iterate_results [--num-workers 2] [--num-epochs 3]
//
// Output: epoch 0: loss 0\.5
// Output: epoch 1: loss 0\.25
// Output: epoch 2: loss 0\.125
// Output: finished true, results \[0\.125,0\.125\]
// Output: left at loss 0\.125: finished false, results \[0\.0078125,0\.0078125\]
// Last line: stopped at loss 0\.125
#include <iostream>
#include <vector>

#include <CLI/CLI.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

double train_func(const troupe::Config& config) {
  double loss = 1;
  for (int epoch = 0; epoch < config["num_epochs"]; ++epoch) {
    loss /= 2;
    train::report({{"epoch", epoch}, {"loss", loss}});
  }
  return loss;
}

// Never ends by itself. When the iterator is gone, report() throws troupe::Stopped: let it pass.
void train_for_ever() {
  for (double loss = 1;; loss /= 2) train::report({{"loss", loss}});
}

void take_all_rounds(troupe::Trainer& trainer, int num_epochs) {
  auto rounds = trainer.run_iterator(troupe::fn<train_func>, {.config = {{"num_epochs", num_epochs}}});
  for (auto& round : rounds) {  // one list a round: the metrics of all workers, in rank order
    std::cout << "epoch " << round[0]["epoch"] << ": loss " << round[0]["loss"] << "\n";
  }
  std::cout << "finished " << std::boolalpha << rounds.is_finished();
  if (auto results = rounds.get_final_results()) std::cout << ", results " << troupe::Json(*results) << "\n";
}

// The function goes on to its end, but nobody looks at its further rounds.
void leave_early(troupe::Trainer& trainer) {
  auto rounds = trainer.run_iterator(troupe::fn<train_func>, {.config = {{"num_epochs", 7}}});
  for (auto& round : rounds) {
    if (round[0]["loss"].get<double>() > 0.125) continue;
    std::cout << "left at loss " << round[0]["loss"];
    break;
  }
  std::cout << ": finished " << std::boolalpha << rounds.is_finished();
  // Without `force` there is nothing yet.
  if (auto results = rounds.get_final_results(/*force=*/true))
    std::cout << ", results " << troupe::Json(*results) << "\n";
}

// The end of the iterator, here that of the loop, stops the function.
void stop_early(troupe::Trainer& trainer) {
  for (auto& round : trainer.run_iterator(troupe::fn<train_for_ever>)) {
    if (round[0]["loss"].get<double>() > 0.125) continue;
    std::cout << "stopped at loss " << round[0]["loss"] << "\n";
    break;
  }
}

int run(int argc, char** argv) {
  int num_workers = 2;
  int num_epochs = 3;
  CLI::App app("Takes the reports of a training round by round");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  app.add_option("--num-epochs", num_epochs, "Epochs of the first run")->capture_default_str();
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.num_workers = num_workers});
  trainer.start();
  take_all_rounds(trainer, num_epochs);
  leave_early(trainer);  // the same workers, a second run
  stop_early(trainer);
  trainer.shutdown();
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
