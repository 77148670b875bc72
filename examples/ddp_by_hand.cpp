// SPDX-License-Identifier: Apache-2.0
// A loop that is written against libtorch's own c10d: troupe forms the process group, the loop does the rest itself.
//
//   build/bin/ddp_by_hand [--num-workers 2]
//
// Last line: 10 losses a rank, models alike: yes
#include <torch/torch.h>

#include <iostream>
#include <vector>

#include <CLI/CLI.hpp>
#include <troupe/torch.hpp>
#include <troupe/torch_c10d.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

troupe::Json train_simple() {
  auto group = train::torch::process_group();
  torch::manual_seed(0);  // the same model everywhere
  torch::nn::Sequential model(torch::nn::Linear(5, 5), torch::nn::ReLU(), torch::nn::Linear(5, 5));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torch::manual_seed(1 + group->getRank());  // other data on every rank
  const auto x = torch::randn({8, 5});
  const auto y = torch::randn({8, 5});

  std::vector<double> losses;
  for (int epoch = 0; epoch < 10; ++epoch) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model->forward(x), y);
    loss.backward();
    for (auto& parameter : model->parameters()) {
      std::vector<torch::Tensor> gradients{parameter.mutable_grad()};
      group->allreduce(gradients)->wait();
      gradients.front().div_(group->getSize());
    }
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  double sum = 0;
  for (const auto& parameter : model->parameters()) sum += parameter.sum().item<double>();
  return {{"losses", losses}, {"sum", sum}};
}

int run(int argc, char** argv) {
  int num_workers = 2;
  CLI::App app("Runs a plain c10d loop on workers");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.backend = "torch", .num_workers = num_workers});
  const auto results = trainer.run(troupe::fn<train_simple>);
  bool alike = true;
  for (const auto& result : results) {
    std::cout << result["losses"] << "\n";
    alike = alike && result["sum"] == results[0]["sum"];
  }
  std::cout << results[0]["losses"].size() << " losses a rank, models alike: " << (alike ? "yes" : "no") << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
