// SPDX-License-Identifier: Apache-2.0
// ddp.*: training steps per second and worker, 2 workers with one thread each; beside it the same workers without
// communication, and PyTorch's DistributedDataParallel under torchrun. The variants take turns in short rounds, so that
// a busy machine slows all alike.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "bench/cases.hpp"
#include "bench/torch/torchrun.hpp"

namespace troupe::bench {
namespace {

namespace nn = ::torch::nn;

nn::Sequential make_model(const std::string& name) {
  if (name == "mlp")
    return nn::Sequential(nn::Linear(784, 1024), nn::ReLU(), nn::Linear(1024, 1024), nn::ReLU(), nn::Linear(1024, 10));
  if (name == "conv")
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 32, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                          nn::Conv2d(nn::Conv2dOptions(32, 64, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                          nn::Flatten(), nn::Linear(64 * 8 * 8, 10));
  return nn::Sequential(nn::Linear(5000, 5000));
}

::torch::Tensor make_input(const std::string& name) {
  if (name == "mlp") return ::torch::randn({64, 784});
  if (name == "conv") return ::torch::randn({16, 3, 32, 32});
  return ::torch::randn({4, 5000});
}

/// A model with its optimizer and input.
class Subject {
public:
  Subject(const std::string& name, bool prepared)
      : model_(make_model(name)), input_(make_input(name)), optimizer_(model_->parameters(), 0.01) {
    if (prepared) train::torch::prepare_model(model_);
    for (int i = 0; i < 5; ++i) step();
  }

  /// Steps a second over one round.
  double rate(int steps) {
    train::torch::barrier();
    const auto begin = now_ns();
    for (int i = 0; i < steps; ++i) step();
    return steps / (ms_since(begin) / 1e3);
  }

private:
  void step() {
    optimizer_.zero_grad();
    model_->forward(input_).square().mean().backward();
    optimizer_.step();
  }

  nn::Sequential model_;
  ::torch::Tensor input_;
  ::torch::optim::SGD optimizer_;
};

/// Rates of this worker's rounds: [plain, prepared].
Json measure(const Config& config) {
  const std::string name = config["model"];
  const int steps = config["steps"];
  Subject plain(name, false);
  Subject prepared(name, true);
  Json rates = {Json::array(), Json::array()};
  for (int round = 0; round < config["rounds"]; ++round) {
    rates[0].push_back(plain.rate(steps));
    rates[1].push_back(prepared.rate(steps));
  }
  return rates;
}

struct Rates {
  std::vector<double> plain;
  std::vector<double> prepared;
  std::vector<double> torchrun;
};

/// Adds the rounds of a run: of each, the slowest worker.
void add_rounds(Rates& rates, int workers, const std::string& model, int rounds, int steps) {
  auto options = trainer_options(workers);
  options.backend = TorchConfig{};
  options.resources_per_worker = {{"CPU", 1}};
  Trainer trainer(options);
  const auto results = trainer.run(fn<measure>, {.config = {{"model", model}, {"rounds", rounds}, {"steps", steps}}});
  const auto slowest = [&](std::size_t variant, std::size_t round) {
    double rate = INFINITY;
    for (const auto& result : results) rate = std::min(rate, result[variant][round].get<double>());
    return rate;
  };
  for (std::size_t round = 0; round < static_cast<std::size_t>(rounds); ++round) {
    rates.plain.push_back(slowest(0, round));
    rates.prepared.push_back(slowest(1, round));
  }
}

/// How much longer a step of a prepared model takes when there is nobody to talk to, in percent.
void bench_overhead(const Output& output, int rounds) {
  Rates rates;
  add_rounds(rates, 1, "mlp", rounds, 10);
  // Of the faster half: what else the machine does only takes away from a rate, more than what is looked for.
  const double percent = (percentile(rates.plain, 0.75) / percentile(rates.prepared, 0.75) - 1) * 100;
  output.add({"ddp.overhead.w1", percent, "%", rates.plain.size(), 1, Figure::Better::lower});
}

}  // namespace

void bench_ddp(const Output& output) {
  struct Case {
    const char* name;
    int steps;  // of a round
    double share_of_independent;
    double times_torchrun;
  };
  const std::vector<Case> cases = {{"mlp", 10, 0.85, 1.8}, {"conv", 6, 0.85, 1.2}, {"lin25m", 3, 0.65, 2.0}};
  const bool quick = std::getenv("TROUPE_BENCH_QUICK") != nullptr;
  const int passes = quick ? 1 : 3;
  const int rounds = quick ? 1 : 7;
  std::vector<std::string> torchrun_cases;
  for (const auto& one : cases) torchrun_cases.push_back(fmt::format("{}:{}:{}", one.name, rounds, one.steps));
  std::map<std::string, Rates> all;
  for (int pass = 0; pass < passes; ++pass) {
    for (const auto& one : cases) add_rounds(all[one.name], 2, one.name, rounds, one.steps);
    const auto peers = run_torchrun(torchrun_cases);
    for (const auto& item : peers.items())
      for (double rate : item.value()) all[item.key()].torchrun.push_back(rate);
  }
  for (const auto& one : cases) {
    const auto& rates = all[one.name];
    const auto name = std::string("ddp.") + one.name;
    const double peer = rates.torchrun.empty() ? 0 : median(rates.torchrun);
    output.add({name, median(rates.prepared), "steps/s", rates.prepared.size(),
                std::max(one.share_of_independent * median(rates.plain), one.times_torchrun * peer),
                Figure::Better::higher});
    output.add({name + ".independent", median(rates.plain), "steps/s", rates.plain.size(), 0, Figure::Better::higher});
    if (peer > 0) output.add({name + ".torchrun", peer, "steps/s", rates.torchrun.size(), 0, Figure::Better::higher});
  }
  bench_overhead(output, quick ? 1 : 60);
}

}  // namespace troupe::bench
