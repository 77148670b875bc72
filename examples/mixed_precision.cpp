// SPDX-License-Identifier: Apache-2.0
// Mixed precision: forward in bfloat16 or half precision, parameters in single precision. A data loader deals the
// batches to the workers, a scheduler warms the learning rate up, and two runs give equal bits.
//
//   build/bin/mixed_precision [--num-workers 2] [--num-epochs 10] [--precision bfloat16|half|float]
//
// Last line: accuracy above 0.95: yes, all workers alike: yes
#include <torch/torch.h>

#include <iostream>

#include <CLI/CLI.hpp>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

troupe::Json train_func(const troupe::Config& config) {
  train::torch::enable_reproducibility(0);
  // Points on a plane; those inside a circle are of class 1. Every worker makes the whole set, and reads its share.
  const auto x = torch::rand({2048, 2}, torch::make_generator<at::CPUGeneratorImpl>(1)) * 2 - 1;
  const auto y = (x.pow(2).sum(1) < 0.6).to(torch::kLong);

  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(), torch::nn::Linear(64, 2));
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));

  const std::string precision = config["precision"];
  train::torch::accelerate({.amp = precision != "float", .dtype = precision == "half" ? at::kHalf : at::kBFloat16});
  net = train::torch::prepare_model(net);
  auto optimizer = train::torch::prepare_optimizer(sgd);

  auto loader = train::torch::prepare_data_loader({x, y}, {.batch_size = 32, .shuffle = true, .workers = 1});
  const int num_epochs = config["num_epochs"];
  const auto steps = num_epochs * static_cast<std::int64_t>(loader.size());
  train::torch::SequentialLR scheduler(
      optimizer, {train::torch::linear({.total_iters = 20}), train::torch::cosine_annealing({.t_max = steps - 20})},
      {20});

  double loss = 0;
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    for (auto& [inputs, targets] : loader) {
      optimizer.zero_grad();
      auto autocast = train::torch::autocast();
      auto batch_loss = torch::cross_entropy_loss(net->forward(inputs), targets);
      train::torch::backward(batch_loss);
      optimizer.step();
      scheduler.step();
      loss = batch_loss.item<double>();
    }
    train::report({{"epoch", epoch}, {"loss", loss}, {"lr", scheduler.get_last_lr()[0]}});
  }
  torch::NoGradGuard no_grad;
  return {{"accuracy", (net->forward(x).argmax(1) == y).to(torch::kFloat).mean().item<double>()}};
}

int run(int argc, char** argv) {
  int num_workers = 2;
  int num_epochs = 10;
  std::string precision = "bfloat16";
  CLI::App app("Trains a small net in mixed precision");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  app.add_option("--num-epochs", num_epochs, "Passes over the data")->capture_default_str();
  app.add_option("--precision", precision, "What forward computes in")
      ->check(CLI::IsMember({"bfloat16", "half", "float"}))
      ->capture_default_str();
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.backend = "torch", .num_workers = num_workers});
  auto rounds =
      trainer.run_iterator(troupe::fn<train_func>, {.config = {{"num_epochs", num_epochs}, {"precision", precision}}});
  for (auto& round : rounds) std::cout << round[0]["epoch"] << ": loss " << round[0]["loss"] << "\n";
  const auto results = rounds.get_returns();
  bool alike = true;
  for (const auto& result : results) alike = alike && result == results[0];
  std::cout << "accuracy above 0.95: " << (results[0]["accuracy"] > 0.95 ? "yes" : "no")
            << ", all workers alike: " << (alike ? "yes" : "no") << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
