// SPDX-License-Identifier: Apache-2.0
// Objects that live on the workers: each worker has one, and the driver calls functions on all of them or on one.
//
//   build/bin/stateful_workers [--num-workers 2]
//
// Last line: rank 1: the learning rate must be above 0 \(user_code\)
#include <future>
#include <iostream>
#include <stdexcept>

#include <CLI/CLI.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

// Finds the minimum of (x - target)^2; each worker has a target of its own.
class Model {
public:
  explicit Model(double start) : x_(start), target_(troupe::train::world_rank()) {}

  double step(double learning_rate) {
    if (learning_rate <= 0) throw std::invalid_argument("the learning rate must be above 0");
    x_ -= learning_rate * 2 * (x_ - target_);
    return x_;
  }
  double x() const { return x_; }

private:
  double x_;
  double target_;
};

int run(int argc, char** argv) {
  int num_workers = 2;
  CLI::App app("Calls functions on objects that live on the workers");
  app.add_option("--num-workers", num_workers, "Number of workers, at least 2")->check(CLI::Range(2, 64));
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.num_workers = num_workers});
  trainer.start<Model>(8.0);  // Model(8.0) on every worker

  // Calls are lambdas without captures: values go along as arguments. All workers at once, results in rank order:
  const auto step = [](Model& model, double learning_rate) { return model.step(learning_rate); };
  std::cout << "all: " << troupe::Json(trainer.execute(step, 0.25)) << "\n";

  // Rank 0 alone, and any other worker by its rank.
  const auto x = [](Model& model) { return model.x(); };
  std::cout << "rank 0: " << trainer.execute_single(x) << "\n";
  auto worker = trainer.workers()[1];
  std::cout << "rank 1: " << worker.execute(step, 0.25) << "\n";

  // submit() does not wait: calls on one worker run in the order given.
  std::future<double> first = worker.submit(step, 0.25);
  std::future<double> second = worker.submit(step, 0.25);
  std::cout << "rank 1: " << first.get() << ", then " << second.get() << "\n";

  // An exception comes back with its text and the rank it was thrown on (error.rank()); the workers live on.
  try {
    worker.execute(step, -1);
  } catch (const troupe::Error& error) {
    std::cout << error.what() << " (" << troupe::to_string(error.code()) << ")\n";
  }
  trainer.shutdown();
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
