// SPDX-License-Identifier: Apache-2.0
// ddp.*: training steps per second and worker, 2 workers with one thread each, and beside it the same workers without
// communication.
#include <torch/torch.h>

#include <string>
#include <vector>

#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "bench/cases.hpp"

namespace troupe::bench {
namespace {

namespace nn = ::torch::nn;

struct Workload {
  nn::Sequential model;
  ::torch::Tensor input;
};

Workload make_workload(const std::string& name) {
  if (name == "mlp")
    return {nn::Sequential(nn::Linear(784, 1024), nn::ReLU(), nn::Linear(1024, 1024), nn::ReLU(), nn::Linear(1024, 10)),
            ::torch::randn({64, 784})};
  if (name == "conv")
    return {nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 32, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                           nn::Conv2d(nn::Conv2dOptions(32, 64, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                           nn::Flatten(), nn::Linear(64 * 8 * 8, 10)),
            ::torch::randn({16, 3, 32, 32})};
  return {nn::Sequential(nn::Linear(5000, 5000)), ::torch::randn({4, 5000})};
}

/// Steps per second of this worker over a few seconds.
double measure(const Config& config) {
  auto [model, input] = make_workload(config["model"].get<std::string>());
  ::torch::optim::SGD optimizer(model->parameters(), 0.01);
  if (config["prepared"].get<bool>()) model = train::torch::prepare_model(model);
  const auto step = [&, &net = model, &x = input] {
    optimizer.zero_grad();
    net->forward(x).square().mean().backward();
    optimizer.step();
  };
  for (int i = 0; i < 5; ++i) step();
  const int steps = config["steps"];
  train::torch::barrier();
  const auto begin = now_ns();
  for (int i = 0; i < steps; ++i) step();
  return steps / (ms_since(begin) / 1e3);
}

double run(int workers, const char* model, bool prepared, int steps) {
  auto options = trainer_options(workers);
  options.backend = TorchConfig{};
  options.resources_per_worker = {{"CPU", 1}};
  Trainer trainer(options);
  const auto results =
      trainer.run(fn<measure>, {.config = {{"model", model}, {"prepared", prepared}, {"steps", steps}}});
  double slowest = results[0].get<double>();
  for (const auto& result : results) slowest = std::min(slowest, result.get<double>());
  return slowest;
}

}  // namespace

void bench_ddp(const Output& output) {
  struct Case {
    const char* name;
    int steps;
    double share_of_independent;
  };
  for (const auto& one : {Case{"mlp", 150, 0.85}, Case{"conv", 100, 0.85}, Case{"lin25m", 40, 0.65}}) {
    // Interleaved, so that a busy machine slows both alike.
    std::vector<double> together;
    std::vector<double> apart;
    for (int round = 0; round < 5; ++round) {
      apart.push_back(run(2, one.name, false, one.steps));
      together.push_back(run(2, one.name, true, one.steps));
    }
    const std::string name = std::string("ddp.") + one.name;
    output.add({name, median(together), "steps/s", together.size(), one.share_of_independent * median(apart),
                Figure::Better::higher});
    output.add({name + ".independent", median(apart), "steps/s", apart.size(), 0, Figure::Better::higher});
  }
}

}  // namespace troupe::bench
