// SPDX-License-Identifier: Apache-2.0
// Training that goes on in place when a worker dies. Worker 1 kills itself in the middle of a step; the others keep
// their state, a new worker takes it over from them, the step is done again, and the weights have the same bits as in
// a run in which nobody died.
//
//   build/bin/live_recovery [--num-workers 2] [--num-steps 60] [--kill-at 20]
//
// Last line: nothing was lost: yes, same weights as without the kill: yes
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <iostream>
#include <vector>

#include <CLI/CLI.hpp>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

troupe::Json train_func(const troupe::Config& config) {
  torch::manual_seed(0);
  const auto x = torch::randn({240, 8});
  const auto y = x.pow(2).sum(1, /*keepdim=*/true);

  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::BatchNorm1d(32), torch::nn::ReLU(),
                            torch::nn::Dropout(0.1), torch::nn::Linear(32, 1));
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  auto model = train::torch::prepare_model(net);
  auto loader = train::torch::prepare_data_loader({x, y}, {.batch_size = 12, .shuffle = true});
  torch::manual_seed(1 + static_cast<std::uint64_t>(train::world_rank()));  // each worker drops out other units

  double loss = 0;
  train::Recoverable state({.model = model, .optimizer = optimizer, .loader = loader, .values = {{"loss", loss}}});
  int steps_here = 0;  // of this process
  for (auto step : state.steps(config["num_steps"])) {
    const bool dies = step.number() == config["kill_at"] && train::world_rank() == 1 && steps_here > 0;
    step.run([&] {
      auto& [inputs, targets] = loader.next();
      optimizer.zero_grad();
      auto batch_loss = torch::mse_loss(model->forward(inputs), targets);
      if (dies) ::kill(::getpid(), SIGKILL);
      batch_loss.backward();
      optimizer.step();
      loss = batch_loss.item<double>();
    });
    steps_here += 1;
    train::report({{"step", step.number()}});
  }
  double sum = 0;
  for (const auto& parameter : model->parameters()) sum += parameter.to(torch::kDouble).sum().item<double>();
  return {{"weights", sum}, {"steps_here", steps_here}, {"pid", ::getpid()}};
}

/// Counts the rounds of metrics, each of which must come once.
struct CountSteps : troupe::TrainingCallback {
  void handle_result(const std::vector<troupe::Json>& results, const troupe::ResultInfo& info) override {
    in_order = in_order && results[0]["step"] == steps;
    steps += 1;
    attempts = static_cast<int>(info.attempt);
  }
  bool in_order = true;
  int steps = 0;
  int attempts = 0;
};

int run(int argc, char** argv) {
  int num_workers = 2;
  int num_steps = 60;
  int kill_at = 20;
  CLI::App app("Trains on workers one of which dies");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str()->check(CLI::Range(2, 64));
  app.add_option("--num-steps", num_steps, "Steps")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--kill-at", kill_at, "The step in which worker 1 dies; not the first")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.backend = "torch", .num_workers = num_workers, .resources_per_worker = {{"CPU", 1}}});
  trainer.start();
  const auto undisturbed = trainer.run(troupe::fn<train_func>, {.config = {{"num_steps", num_steps}, {"kill_at", -1}}});
  auto counted = std::make_shared<CountSteps>();
  const auto disturbed = trainer.run(
      troupe::fn<train_func>, {.config = {{"num_steps", num_steps}, {"kill_at", kill_at}}, .callbacks = {counted}});
  trainer.shutdown();

  std::cout << "without the kill: " << undisturbed[0].dump() << "\n";
  for (const auto& result : disturbed) std::cout << "with it: " << result.dump() << "\n";
  const bool complete = counted->in_order && counted->steps == num_steps && counted->attempts == 1;
  const bool same = disturbed[0]["weights"] == undisturbed[0]["weights"];
  std::cout << "nothing was lost: " << (complete ? "yes" : "no")
            << ", same weights as without the kill: " << (same ? "yes" : "no") << "\n";
  return complete && same ? 0 : 1;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
