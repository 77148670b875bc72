// SPDX-License-Identifier: Apache-2.0
// A training in which a worker is killed every 5 to 15 seconds: the weights must be those of a training in which nobody
// dies, and neither the program nor its fork server may grow.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <iostream>
#include <memory>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "bench/cases.hpp"
#include "bench/processes.hpp"
#include "bench/torch/recovery_injector.hpp"

namespace troupe::bench {
namespace {

constexpr int step_ms = 20;
constexpr double allowed_growth_mb = 20;
constexpr int allowed_growth = 4;  // descriptors, threads: a worker more or less is just being replaced

/// Gives the weights, in full precision.
Json train_on(const Config& config) {
  ::torch::manual_seed(1);
  ::torch::nn::Sequential model(::torch::nn::Linear(16, 64), ::torch::nn::Tanh(), ::torch::nn::Linear(64, 1));
  ::torch::optim::SGD optimizer(model->parameters(), ::torch::optim::SGDOptions(0.01).momentum(0.9));
  train::torch::prepare_model(model);
  train::Recoverable state({.model = model, .optimizer = optimizer});
  for (auto step : state.steps(config["steps"])) {
    step.run([&] {
      const auto seed = 1000 * step.number() + train::world_rank();
      const auto x = ::torch::sin(::torch::arange(32 * 16).view({32, 16}).to(::torch::kFloat) + seed);
      optimizer.zero_grad();
      ::torch::mse_loss(model->forward(x), x.sum(1, true)).backward();
      optimizer.step();
    });
    train::report(step_report(step.number()));
    std::this_thread::sleep_for(std::chrono::milliseconds(config["pace_ms"].get<int>()));
  }
  Json weights = Json::array();
  for (const auto& parameter : model->parameters())
    for (const auto& part : parameter.flatten().unbind()) weights.push_back(part.item<float>());
  return weights;
}

/// What may grow: the driver (the first) and the fork server.
struct Sizes {
  std::map<int, ProcessMemory> processes;
  static Sizes now() {
    Sizes sizes{memory_of_tree()};
    std::erase_if(sizes.processes, [](const auto& one) { return one.second.name == "troupe-worker"; });
    return sizes;
  }
};

class Killer : public TrainingCallback {
public:
  Killer(int seconds, std::uint64_t seed)
      : random_(seed), shortest_ms_(seconds < 120 ? 1000 : 5000), longest_ms_(3 * shortest_ms_) {
    plan();
  }

  void handle_result(const std::vector<Json>& results, const ResultInfo&) override {
    if (now_ns() < next_) return;
    plan();
    ::kill(results[random_() % results.size()]["pid"].get<pid_t>(), SIGKILL);
    kills_ += 1;
    if (kills_ == 3) early_ = Sizes::now();  // caches are warm
  }
  int kills() const { return kills_; }
  const Sizes& early() const { return early_; }

private:
  void plan() {
    const std::uniform_int_distribution<std::int64_t>::param_type range(shortest_ms_, longest_ms_);
    next_ = now_ns() + std::uniform_int_distribution<std::int64_t>(range)(random_) * 1'000'000;
  }

  std::mt19937_64 random_;
  std::int64_t shortest_ms_;
  std::int64_t longest_ms_;
  std::int64_t next_ = 0;
  int kills_ = 0;
  Sizes early_;
};

bool is_flat(const Sizes& early, const Sizes& late) {
  bool flat = true;
  for (const auto& [pid, before] : early.processes) {
    const auto found = late.processes.find(pid);
    if (found == late.processes.end()) continue;
    const auto& after = found->second;
    flat = flat && after.rss_mb - before.rss_mb <= allowed_growth_mb &&
           after.descriptors - before.descriptors <= allowed_growth && after.threads - before.threads <= allowed_growth;
    std::cout << fmt::format("{:<16} pid {:<8} RSS {:.1f} -> {:.1f} MB, descriptors {} -> {}, threads {} -> {}\n",
                             before.name, pid, before.rss_mb, after.rss_mb, before.descriptors, after.descriptors,
                             before.threads, after.threads);
  }
  return flat;
}

}  // namespace

bool soak_kills(int seconds, std::uint64_t seed) {
  std::cout << fmt::format("killing workers for {} s (--seed {})\n", seconds, seed) << std::flush;
  auto options = trainer_options(2);
  options.backend = TorchConfig{};
  options.resources_per_worker = {{"CPU", 1}};
  options.max_retries = -1;
  options.spares = 1;
  Trainer trainer(options);
  const int steps = seconds * 1000 / step_ms;
  const auto expected = trainer.run(fn<train_on>, {.config = {{"steps", steps}, {"pace_ms", 0}}});
  auto killer = std::make_shared<Killer>(seconds, seed);
  const auto begin = now_ns();
  const auto weights =
      trainer.run(fn<train_on>, {.config = {{"steps", steps}, {"pace_ms", step_ms}}, .callbacks = {killer}});
  const bool same = weights == expected;
  const bool flat = is_flat(killer->early(), Sizes::now());
  std::cout << fmt::format("{} steps, {} kills in {:.0f} s: weights are {}, sizes are {}\n", steps, killer->kills(),
                           ms_since(begin) / 1e3, same ? "the same" : "NOT THE SAME", flat ? "flat" : "NOT FLAT");
  return same && flat && killer->kills() >= 3;  // fewer: sizes were not compared
}

}  // namespace troupe::bench
