// SPDX-License-Identifier: Apache-2.0
// The newer front door: all is said in TorchTrainer's constructor, fit() starts workers, trains and ends them.
//
//   build/bin/torch_trainer [--num-workers 2] [--num-epochs 5]
//
// Last line: epoch 4, loss fell: yes
#include <torch/torch.h>

#include <iostream>

#include <CLI/CLI.hpp>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

void train_func(const troupe::Config& config) {
  torch::manual_seed(train::world_rank());  // other data on every worker
  const auto x = torch::randn({100, 4});
  const auto y = torch::rand({100, 1});

  auto model = train::torch::prepare_model(torch::nn::Linear(4, 1));
  torch::optim::Adam optimizer(model->parameters(), config["lr"].get<double>());
  for (int epoch = 0; epoch < config["num_epochs"]; ++epoch) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model->forward(x), y);
    loss.backward();
    optimizer.step();
    train::report({{"epoch", epoch}, {"loss", loss.item<double>()}});
  }
}

// Remembers the first loss, to compare.
class FirstLoss : public troupe::TrainingCallback {
public:
  void handle_result(const std::vector<troupe::Json>& results, const troupe::ResultInfo& info) override {
    if (info.round == 1) loss = results[0]["loss"];
  }
  double loss = 0;
};

int run(int argc, char** argv) {
  int num_workers = 2;
  int num_epochs = 5;
  CLI::App app("Trains a linear model through TorchTrainer");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  app.add_option("--num-epochs", num_epochs, "Passes over the data")->capture_default_str();
  parse_flags(app, argc, argv);

  auto first = std::make_shared<FirstLoss>();
  troupe::TorchTrainer trainer(
      troupe::fn<train_func>,
      {.train_loop_config = {{"num_epochs", num_epochs}, {"lr", 0.01}},
       .scaling_config = {.num_workers = num_workers},
       .run_config = {.name = "torch_trainer", .failure_config = {.max_failures = 2}, .callbacks = {first}}});
  const auto result = trainer.fit();
  std::cout << "metrics of rank 0: " << result.metrics << "\nfiles: " << result.path.string() << "\n";
  std::cout << "epoch " << result.metrics["epoch"]
            << ", loss fell: " << (result.metrics["loss"] < first->loss ? "yes" : "no") << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
