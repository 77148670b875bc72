// SPDX-License-Identifier: Apache-2.0
// Training whose number of workers changes while it runs: 2, then 4, then 3. The samples of a step stay the same, only
// who computes them changes, so the loss ends where it ends with 2 workers all the time.
//
//   build/bin/elastic [--rounds 20]
//
// Output: round 1: 2 workers, loss .*
// Output: round \d+: 4 workers, loss .*
// Output: round \d+: 3 workers, loss .*
// Last line: workers: 2 -> 4 -> 3, same loss as with 2 all the time: yes
#include <torch/torch.h>

#include <cmath>
#include <iostream>
#include <vector>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

void train_func(const troupe::Config& config) {
  torch::manual_seed(0);
  const auto x = torch::randn({480, 8});
  const auto y = x.pow(2).sum(1, /*keepdim=*/true);
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1));
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  auto model = train::torch::prepare_model(net);
  auto loader = train::torch::prepare_data_loader({x, y}, {.batch_size = 12, .shuffle = true});

  double loss = 0;
  train::Recoverable state({.model = model,
                            .optimizer = optimizer,
                            .loader = loader,
                            .values = {{"loss", loss}},
                            .batch = train::ElasticBatch::keep_global});
  for (auto step : state.steps(config["num_steps"])) {
    step.run([&] {
      auto& [inputs, targets] = loader.next();
      optimizer.zero_grad();
      auto batch_loss = torch::mse_loss(model->forward(inputs), targets);
      batch_loss.backward();
      optimizer.step();
      loss = batch_loss.item<double>();
    });
    train::report({{"loss", loss}});
  }
}

/// Every worker has an equal share of the samples, so this is the loss of all of them.
double mean_loss(const std::vector<troupe::Json>& results) {
  double sum = 0;
  for (const auto& result : results) sum += result["loss"].get<double>();
  return sum / static_cast<double>(results.size());
}

/// Asks for 4 workers, then for 3, each after a number of rounds, and ends the run.
struct Resizing : troupe::TrainingCallback {
  Resizing(troupe::Trainer& trainer_to_resize, int rounds_each) : trainer(trainer_to_resize), rounds(rounds_each) {}

  void handle_result(const std::vector<troupe::Json>& results, const troupe::ResultInfo& info) override {
    const auto size = static_cast<int>(results.size());
    if (sizes.empty() || sizes.back() != size) {
      std::cout << "round " << info.round << ": " << size << " workers, loss " << mean_loss(results) << "\n";
      sizes.push_back(size);
      since = 0;
    }
    since += 1;
    if (size == 2 && since == rounds) trainer.resize(4);
    if (size == 4 && since == rounds) trainer.resize(3);
    if (size == 3 && since >= rounds) {
      last_round = info.round;
      loss = mean_loss(results);
      info.stop();
    }
  }

  troupe::Trainer& trainer;
  int rounds;
  std::vector<int> sizes;
  int since = 0;
  std::int64_t last_round = 0;
  double loss = 0;
};

/// Keeps the loss of the last round.
struct LastLoss : troupe::TrainingCallback {
  void handle_result(const std::vector<troupe::Json>& results, const troupe::ResultInfo&) override {
    loss = mean_loss(results);
  }
  double loss = 0;
};

int run(int argc, char** argv) {
  int rounds = 20;
  CLI::App app("Trains on a number of workers that changes");
  app.add_option("--rounds", rounds, "Rounds with each number of workers, at least")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  parse_flags(app, argc, argv);

  // No more than 2 by itself, whatever this machine has room for.
  troupe::Trainer trainer({.backend = "torch", .num_workers = {2, 4}, .resources_per_worker = {{"CPU", 1}}});
  trainer.start();
  trainer.resize(2);
  auto resizing = std::make_shared<Resizing>(trainer, rounds);
  trainer.run(troupe::fn<train_func>, {.config = {{"num_steps", 1 << 30}}, .callbacks = {resizing}});

  trainer.resize(2);
  auto plain = std::make_shared<LastLoss>();
  trainer.run(troupe::fn<train_func>, {.config = {{"num_steps", resizing->last_round}}, .callbacks = {plain}});
  trainer.shutdown();

  const bool same = std::abs(plain->loss - resizing->loss) <= 1e-4 * (1 + std::abs(plain->loss));
  std::cout << "after round " << resizing->last_round << ": loss " << resizing->loss << ", with 2 workers "
            << plain->loss << "\n"
            << fmt::format("workers: {}, same loss as with 2 all the time: {}\n", fmt::join(resizing->sizes, " -> "),
                           same ? "yes" : "no");
  return same ? 0 : 1;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
