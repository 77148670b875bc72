// SPDX-License-Identifier: Apache-2.0
// The same function three ways: called directly, in local mode (num_workers = 0: this thread, for debuggers and tests),
// and on worker processes.
//
//   build/bin/local_mode [--num-workers 2] [--num-epochs 3]
//
// Last line: direct 6, local \[6\], workers \[6,6\]
#include <unistd.h>

#include <iostream>
#include <vector>

#include <CLI/CLI.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

int train_func(const troupe::Config& config) {
  int sum = 0;
  for (int epoch = 1; epoch <= config["num_epochs"]; ++epoch) {
    sum += epoch;
    // Without a trainer nobody listens, and report() would throw.
    if (train::in_worker()) train::report({{"epoch", epoch}, {"pid", ::getpid()}});
  }
  return sum;
}

std::vector<troupe::Json> train_on(int num_workers, const troupe::Json& config) {
  troupe::Trainer trainer({.num_workers = num_workers});
  auto rounds = trainer.run_iterator(troupe::fn<train_func>, {.config = config});
  for (auto& round : rounds)
    std::cout << num_workers << " workers, epoch " << round[0]["epoch"] << ": "
              << (round[0]["pid"] == ::getpid() ? "in this process" : "in a process of its own") << "\n";
  return rounds.get_returns();
}

int run(int argc, char** argv) {
  int num_workers = 2;
  int num_epochs = 3;
  CLI::App app("Runs a function directly, in local mode and on workers");
  app.add_option("--num-workers", num_workers, "Number of workers of the last way")->capture_default_str();
  app.add_option("--num-epochs", num_epochs, "Epochs each time")->capture_default_str();
  parse_flags(app, argc, argv);

  const troupe::Json config{{"num_epochs", num_epochs}};
  const int direct = train_func(troupe::Config(config));
  const auto local = train_on(0, config);
  const auto workers = train_on(num_workers, config);
  std::cout << "direct " << direct << ", local " << troupe::Json(local) << ", workers " << troupe::Json(workers)
            << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);  // only worker processes need it: local mode does without
  return example_main(run, argc, argv);
}
