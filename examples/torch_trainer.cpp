// SPDX-License-Identifier: Apache-2.0
// The newer front door: all is said in TorchTrainer's constructor, fit() starts
// workers, trains and ends them. Trains for two epochs, goes on from the
// checkpoint up to the fourth, and compares with a training without the break.
//
//   build/bin/torch_trainer [--num-workers 2]
//
// Last line: epoch 3, same weights as without a break: yes
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

  torch::nn::Linear model(4, 1);
  torch::optim::Adam optimizer(model->parameters(), 3e-4);
  int start_epoch = 0;
  // The one given to the trainer, or the latest of this run if a worker was
  // lost.
  if (const auto checkpoint = train::load_checkpoint()) {
    train::torch::load_state_dict(model, checkpoint->at("model"));
    train::torch::load_state_dict(optimizer, checkpoint->at("optimizer"));
    start_epoch = checkpoint->value("epoch", -1) + 1;
  }
  model = train::torch::prepare_model(model);
  for (int epoch = start_epoch; epoch < config["num_epochs"]; ++epoch) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model->forward(x), y);
    loss.backward();
    optimizer.step();
    train::report({{"epoch", epoch}, {"loss", loss.item<double>()}},
                  {{"epoch", epoch},
                   {"model", train::torch::state_dict(model)},
                   {"optimizer", train::torch::state_dict(optimizer)}});
  }
}

troupe::Result train_epochs(int num_epochs, int num_workers, std::optional<troupe::Checkpoint> from = {}) {
  troupe::TorchTrainer trainer(troupe::fn<train_func>, {.train_loop_config = {{"num_epochs", num_epochs}},
                                                        .scaling_config = {.num_workers = num_workers},
                                                        .run_config = {.name = "torch_trainer",
                                                                       .failure_config = {.max_failures = 2},
                                                                       .checkpoint_config = {.num_to_keep = 2}},
                                                        .resume_from_checkpoint = from});
  return trainer.fit();
}

int run(int argc, char** argv) {
  int num_workers = 2;
  CLI::App app("Trains a linear model through TorchTrainer, in two goes");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  parse_flags(app, argc, argv);

  const auto first = train_epochs(2, num_workers);
  std::cout << "metrics of rank 0: " << first.metrics << "\nfiles: " << first.path.string() << "\n";
  std::cout << "checkpoint: " << *first.checkpoint << "\n";
  const auto second = train_epochs(4, num_workers, first.checkpoint);
  const auto straight = train_epochs(4, num_workers);
  const bool same = second.checkpoint->at("model") == straight.checkpoint->at("model");
  std::cout << "epoch " << second.checkpoint->at<int>("epoch")
            << ", same weights as without a break: " << (same ? "yes" : "no") << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
