// SPDX-License-Identifier: Apache-2.0
// What can be done with reports: print them, keep them in a JSON file, and a callback of our own that watches a metric.
//
//   build/bin/report_callback [--num-workers 2] [--num-epochs 3]
//
// Output: training on 2 workers, config \{"num_epochs":3\}
// Output: training ended well
// Last line: best mean loss 0\.375 in round 3
#include <iostream>
#include <limits>
#include <memory>
#include <vector>

#include <CLI/CLI.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

void train_func(const troupe::Config& config) {
  double loss = train::world_rank() + 1;
  for (int epoch = 0; epoch < config["num_epochs"]; ++epoch, loss /= 2)
    train::report({{"epoch", epoch}, {"loss", loss}});
}

// Lives in the driver, and is called on a thread of its own: no locks are needed here.
class BestLoss : public troupe::TrainingCallback {
public:
  void start_training(const troupe::TrainingInfo& info) override {
    std::cout << "training on " << info.world_size << " workers, config " << info.config << "\n";
  }

  void handle_result(const std::vector<troupe::Json>& results, const troupe::ResultInfo& info) override {
    double sum = 0;
    for (const auto& metrics : results) sum += metrics["loss"].get<double>();
    const double mean = sum / static_cast<double>(results.size());
    if (mean >= best_) return;
    best_ = mean;
    round_ = info.round;
  }

  void finish_training(bool error) override { std::cout << "training " << (error ? "failed" : "ended well") << "\n"; }

  double best() const { return best_; }
  std::int64_t round() const { return round_; }

private:
  double best_ = std::numeric_limits<double>::infinity();
  std::int64_t round_ = 0;
};

int run(int argc, char** argv) {
  int num_workers = 2;
  int num_epochs = 3;
  CLI::App app("Handles the reports of a training with three callbacks");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  app.add_option("--num-epochs", num_epochs, "Epochs each of them does")->capture_default_str();
  parse_flags(app, argc, argv);

  auto best = std::make_shared<BestLoss>();
  auto json = std::make_shared<troupe::JsonLoggerCallback>();  // the metrics of rank 0, unless told otherwise
  troupe::Trainer trainer({.num_workers = num_workers});
  trainer.run(troupe::fn<train_func>, {.config = {{"num_epochs", num_epochs}},
                                       .callbacks = {std::make_shared<troupe::PrintCallback>(), json, best}});
  trainer.shutdown();

  std::cout << "all rounds are in " << json->log_path().string() << "\n";
  std::cout << "best mean loss " << best->best() << " in round " << best->round() << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
