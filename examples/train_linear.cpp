// SPDX-License-Identifier: Apache-2.0
// Data-parallel training with libtorch: a linear model on two workers. prepare_model() makes backward() average the
// gradients, so that every worker takes the same steps.
//
//   build/bin/train_linear [--num-workers 2] [--num-epochs 400]
//
// Last line: loss below 0.01: yes, all workers alike: yes
#include <torch/torch.h>

#include <iostream>
#include <vector>

#include <CLI/CLI.hpp>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

// Rows of the data set that belong to this worker.
torch::Tensor my_share(const torch::Tensor& rows) {
  return rows.tensor_split(train::world_size())[static_cast<std::size_t>(train::world_rank())];
}

troupe::Json train_func(const troupe::Config& config) {
  torch::manual_seed(0);
  const auto x = torch::randn({100, 4});
  const auto y = x.matmul(torch::tensor({0.1F, 0.2F, -0.3F, 0.4F}).view({4, 1})) + 0.5F;

  torch::nn::Linear model(4, 1);
  torch::optim::Adam optimizer(model->parameters(), 3e-4);
  model = train::torch::prepare_model(model);

  const auto inputs = my_share(x).split(5);
  const auto targets = my_share(y).split(5);
  double loss = 0;
  for (int epoch = 0; epoch < config["num_epochs"]; ++epoch) {
    auto sum = torch::zeros({1});
    for (std::size_t batch = 0; batch < inputs.size(); ++batch) {
      optimizer.zero_grad();
      auto batch_loss = torch::mse_loss(model->forward(inputs[batch]), targets[batch]);
      batch_loss.backward();
      optimizer.step();
      sum += batch_loss.detach();
    }
    // Each worker has seen its share; the mean over all is the loss of the epoch.
    loss =
        train::torch::all_reduce(sum / static_cast<double>(inputs.size()), train::torch::Reduce::mean).item<double>();
    if (epoch % 100 == 0) train::report({{"epoch", epoch}, {"loss", loss}});
  }
  return {{"loss", loss}, {"weight", model->weight.sum().item<double>()}};
}

int run(int argc, char** argv) {
  int num_workers = 2;
  int num_epochs = 400;
  CLI::App app("Trains a linear model on several workers");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  app.add_option("--num-epochs", num_epochs, "Passes over the data")->capture_default_str();
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.backend = "torch", .num_workers = num_workers});
  auto rounds = trainer.run_iterator(troupe::fn<train_func>, {.config = {{"num_epochs", num_epochs}}});
  for (auto& round : rounds) std::cout << "epoch " << round[0]["epoch"] << ": loss " << round[0]["loss"] << "\n";
  const auto results = rounds.get_returns();
  bool alike = true;
  for (const auto& result : results) alike = alike && result == results[0];
  std::cout << "loss below 0.01: " << (results[0]["loss"] < 0.01 ? "yes" : "no")
            << ", all workers alike: " << (alike ? "yes" : "no") << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
