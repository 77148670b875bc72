// SPDX-License-Identifier: Apache-2.0
// Metrics over workers: each worker sees its own samples; compute() gives the value over the samples of all.
//
//   build/bin/torch_metrics [--num-workers 2]
//
// Last line: accuracy by worker: \[0\.\d+,0\.\d+\], of all: 0\.\d+, all workers agree: yes
#include <torch/torch.h>

#include <iostream>
#include <vector>

#include <CLI/CLI.hpp>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;
namespace metrics = troupe::train::torch::metrics;

void train_func() {
  torch::manual_seed(train::world_rank());
  metrics::Accuracy accuracy;  // over the samples of all workers
  metrics::Mean loss;
  double own_accuracy = 0;
  for (int batch = 0; batch < 4; ++batch) {
    const auto samples = 10 + 5 * train::world_rank();  // workers need not have equally many
    const auto scores = torch::randn({samples, 5}).softmax(-1);
    const auto targets = torch::randint(5, {samples}, torch::kLong);
    accuracy.update(scores, targets);
    loss.update(torch::nll_loss(scores.log(), targets).item<double>(), samples);
    own_accuracy += scores.argmax(1).eq(targets).to(torch::kDouble).mean().item<double>() / 4;
  }
  train::report({{"accuracy", own_accuracy},
                 {"accuracy_collected", accuracy.compute()},  // all workers call it; all get the same
                 {"loss_collected", loss.compute()}});
}

class PrintRounds : public troupe::TrainingCallback {
public:
  void handle_result(const std::vector<troupe::Json>& results, const troupe::ResultInfo&) override {
    troupe::Json by_worker;
    bool agree = true;
    for (const auto& metrics : results) {
      by_worker.push_back(metrics["accuracy"]);
      agree = agree && metrics["accuracy_collected"] == results[0]["accuracy_collected"];
    }
    std::cout << "loss of all: " << results[0]["loss_collected"] << "\n";
    std::cout << "accuracy by worker: " << by_worker << ", of all: " << results[0]["accuracy_collected"]
              << ", all workers agree: " << (agree ? "yes" : "no") << "\n";
  }
};

int run(int argc, char** argv) {
  int num_workers = 2;
  CLI::App app("Computes metrics over several workers");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.backend = "torch", .num_workers = num_workers});
  trainer.run(troupe::fn<train_func>, {.callbacks = {std::make_shared<PrintRounds>()}});
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
