// SPDX-License-Identifier: Apache-2.0
// The smallest training: a function on two workers that reports every epoch and returns what it did.
//
//   build/bin/quickstart [--num-workers 2] [--num-epochs 3]
//
// Output: \[\{"epoch":0,.*"_training_iteration":1\},\{"epoch":0,.*"_training_iteration":1\}\]
// Output: \[\{"epoch":1,.*"_training_iteration":2\},\{"epoch":1,.*"_training_iteration":2\}\]
// Output: \[\{"epoch":2,.*"_training_iteration":3\},\{"epoch":2,.*"_training_iteration":3\}\]
// Last line: \[\[0,1,2\],\[0,1,2\]\]
#include <iostream>
#include <memory>
#include <vector>

#include <CLI/CLI.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

// Runs on every worker, each a process of its own.
std::vector<int> train_func(const troupe::Config& config) {
  std::vector<int> epochs;
  for (int epoch = 0; epoch < config["num_epochs"]; ++epoch) {
    train::report({{"epoch", epoch}});
    epochs.push_back(epoch);
  }
  return epochs;
}

// Gets one list a round: the metrics of all workers, in rank order.
class PrintRounds : public troupe::TrainingCallback {
public:
  void handle_result(const std::vector<troupe::Json>& results, const troupe::ResultInfo&) override {
    std::cout << troupe::Json(results) << "\n";
  }
};

int run(int argc, char** argv) {
  int num_workers = 2;
  int num_epochs = 3;
  CLI::App app("Runs a function on workers and prints its reports and results");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  app.add_option("--num-epochs", num_epochs, "Epochs each of them does")->capture_default_str();
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.num_workers = num_workers});
  trainer.start();
  auto results = trainer.run(troupe::fn<train_func>,
                             {.config = {{"num_epochs", num_epochs}}, .callbacks = {std::make_shared<PrintRounds>()}});
  trainer.shutdown();
  std::cout << troupe::Json(results) << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);  // a worker process never returns from here
  return example_main(run, argc, argv);
}
