// SPDX-License-Identifier: Apache-2.0
#include "test/torch/live_training.hpp"

#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <tuple>

#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

namespace tt = troupe::train::torch;

namespace troupe::test {
namespace {

constexpr std::int64_t samples = 96;
constexpr const char* disturbed = "disturbed";

void wait_for_file(const std::filesystem::path& path) {
  while (!std::filesystem::exists(path)) std::this_thread::yield();
}

/// Dies, or throws, at the places that the test asks for.
class Faults {
public:
  explicit Faults(const Config& config)
      : folder_(config["folder"].get<std::string>()), faults_(config.value("faults", Json::array())) {}

  bool due(const std::string& when, std::int64_t step) const {
    for (std::size_t i = 0; i < faults_.size(); ++i)
      if (faults_[i]["when"] == when && faults_[i]["step"] == step && faults_[i]["rank"] == train::world_rank())
        return is_first(folder_, name_of(i)) && wait_for_others(faults_[i]);
    return false;
  }
  void at(const std::string& when, std::int64_t step) const {
    if (due(when, step)) ::kill(::getpid(), SIGKILL);
  }

private:
  static std::string name_of(std::size_t index) { return "fault" + std::to_string(index); }

  /// Who fails first would end an exchange that the other one has not left yet.
  bool wait_for_others(const Json& fault) const {
    const auto is_behind_exchanges = [](const Json& one) {
      return one["when"] == "optimizer" || one["when"] == "before step";
    };
    for (std::size_t i = 0; i < faults_.size(); ++i)
      if (is_behind_exchanges(fault) && is_behind_exchanges(faults_[i]) && faults_[i]["step"] == fault["step"])
        wait_for_file(folder_ / name_of(i));
    return true;
  }

  std::filesystem::path folder_;
  Json faults_;
};

/// Adam that can fail between two parameters.
struct TornAdam : ::torch::optim::Adam {
  using Adam::Adam;
  std::function<bool()> tears = [] { return false; };
  ::torch::Tensor step(LossClosure closure = nullptr) override {
    if (!tears()) return Adam::step(std::move(closure));
    at::NoGradGuard no_grad;
    param_groups()[0].params()[0].add_(1);
    throw GroupLost("torn");
  }
};

/// The run in which nobody dies.
const Outcome& undisturbed(const LiveRun& run) {
  static std::map<std::tuple<int, int, bool>, Outcome> outcomes;
  const std::tuple key(run.workers, run.num_epochs, run.shared_memory);
  if (!outcomes.contains(key))
    outcomes[key] =
        train_with({.workers = run.workers, .num_epochs = run.num_epochs, .shared_memory = run.shared_memory});
  return outcomes[key];
}

}  // namespace

Json train_live(const Config& config) {
  const Faults faults(config);
  faults.at("start", 0);
  if (is_first(config["folder"].get<std::string>(), "rank" + std::to_string(train::world_rank())) == false)
    faults.at("second start", 0);
  ::torch::manual_seed(1);
  const auto x = ::torch::randn({samples, 4});
  const auto y = ::torch::cat({::torch::randn({samples, 2}), ::torch::arange(samples).view({samples, 1})}, 1);
  ::torch::nn::Sequential net(::torch::nn::Linear(4, 16), ::torch::nn::BatchNorm1d(16), ::torch::nn::Dropout(0.3),
                              ::torch::nn::Linear(16, 2));
  auto used = net->register_buffer("used", ::torch::zeros({samples}));
  TornAdam optimizer(net->parameters(), ::torch::optim::AdamOptions(0.01));
  tt::CosineAnnealingLR scheduler(optimizer, {.t_max = 20});
  net = tt::prepare_model(net, {.bucket_bytes = 64});
  auto loader = tt::prepare_data_loader({x, y}, {.batch_size = 4, .shuffle = true, .seed = 3});
  ::torch::manual_seed(100 + static_cast<std::uint64_t>(train::world_rank()));
  if (config.value("talks_before_steps", false)) tt::all_reduce(::torch::ones({1}));

  double losses = 0;
  std::vector<int> own_samples;  // grows in every step
  auto own_sum = ::torch::zeros({2}, ::torch::kDouble);
  auto ballast = ::torch::zeros({config.value("ballast", std::int64_t{1})});
  std::int64_t first = -1;
  train::Recoverable state({.model = net,
                            .optimizer = optimizer,
                            .scheduler = scheduler,
                            .loader = loader,
                            .values = {{"losses", losses}, {"ballast", ballast}},
                            .own_values = {{"own_samples", own_samples}, {"own_sum", own_sum}}});
  const auto checkpoints = config.value("checkpoints", std::int64_t{0});
  if (checkpoints > 0) state.resume();
  optimizer.tears = [&] { return faults.due("optimizer", state.step()); };
  for (auto step : state.epochs(config["num_epochs"])) {
    if (first < 0) first = step.number();
    if (step.number() == config.value("waits_at", std::int64_t{-1}))
      wait_for_file(std::filesystem::path(config["folder"].get<std::string>()) / disturbed);
    step.run([&] {
      auto& [inputs, targets] = loader.next();
      faults.at("forward", step.number());
      if (config.contains("step_us"))
        std::this_thread::sleep_for(std::chrono::microseconds(config["step_us"].get<int>()));
      optimizer.zero_grad();
      const auto output = net->forward(inputs);
      if (faults.due("backward", step.number()))
        output.register_hook([](const at::Tensor&) { ::kill(::getpid(), SIGKILL); });
      if (faults.due("throw", step.number())) throw std::runtime_error("bad batch");
      own_samples.push_back(targets[0][2].item<int>());
      own_sum += inputs.sum().item<double>();
      auto loss = ::torch::mse_loss(output, targets.narrow(1, 0, 2));
      loss.backward();
      auto counts = ::torch::zeros({samples});
      counts.index_add_(0, targets.select(1, 2).to(::torch::kLong), ::torch::ones({targets.size(0)}));
      tt::all_reduce(counts);
      tt::all_reduce(loss.detach());
      faults.at("before step", step.number());
      optimizer.step();
      scheduler.step();
      used += counts;
      losses += loss.item<double>();
      faults.at("after step", step.number());
    });
    faults.at("after run", step.number());
    if (checkpoints > 0 && step.number() % checkpoints == checkpoints - 1) {
      train::save_checkpoint(state.checkpoint());
      faults.at("in save", step.number());  // it is written behind the training
    }
    train::report({{"step", step.number()}, {"losses", losses}});
  }
  std::vector<Values> tensors;
  for (const auto& tensor : net->parameters()) tensors.push_back(values_of(tensor));
  for (const auto& tensor : net->buffers()) tensors.push_back(values_of(tensor));
  tensors.push_back(values_of(::torch::rand({4})));  // the numbers go on as they would have
  return {{"tensors", tensors},
          {"used", values_of(used)},
          {"losses", losses},
          {"rate", scheduler.get_last_lr()},
          {"own_samples", own_samples},
          {"own_sum", values_of(own_sum)},
          {"first", first},
          {"pid", ::getpid()}};
}

Json fault(int rank, std::int64_t step, const char* when) { return {{"rank", rank}, {"step", step}, {"when", when}}; }

Outcome train_with(const LiveRun& run, const Disturbance& during) {
  auto options = run.options;
  options.backend = TorchConfig{.timeout_s = 30, .shared_memory = run.shared_memory};
  options.num_workers = run.workers;
  options.resources_per_worker = {{"CPU", 1}};
  TestTrainer trainer(options);
  auto config = run.config;
  config["num_epochs"] = run.num_epochs;
  config["folder"] = trainer.folder().string();
  config["faults"] = run.faults;
  auto recorder = std::make_shared<Recorder>();
  auto disturber = std::make_shared<FunctionCallback>();
  if (during)
    disturber->on_result = [&](const auto&, const ResultInfo& info) {
      if (during(*trainer, info)) std::ofstream(trainer.folder() / disturbed);
    };
  Outcome outcome;
  outcome.results = trainer->run(fn<train_live>, {.config = config, .callbacks = {recorder, disturber}});
  outcome.rounds = recorder->rounds;
  outcome.infos = recorder->infos;
  outcome.decisions = Json::parse(read_file(trainer->latest_run_dir() / "run.json"))["decisions"];
  if (const auto checkpoint = trainer->latest_checkpoint()) outcome.checkpoint = checkpoint->to_dict();
  for (const auto& info : recorder->infos)
    outcome.attempts = std::max(outcome.attempts, static_cast<int>(info.attempt));
  return outcome;
}

void check_same(const Outcome& outcome, const LiveRun& run) {
  const auto& wanted = undisturbed(run);
  DOCTEST_REQUIRE(outcome.results.size() == wanted.results.size());
  for (std::size_t rank = 0; rank < outcome.results.size(); ++rank) {
    DOCTEST_CAPTURE(rank);
    for (const char* key : {"tensors", "used", "losses", "rate", "own_samples", "own_sum"})
      DOCTEST_CHECK(outcome.results[rank][key] == wanted.results[rank][key]);
    // Each sample once an epoch.
    DOCTEST_CHECK(outcome.results[rank]["used"] == Json(Values(samples, run.num_epochs)));
  }
}

void check_live(const Outcome& outcome, const LiveRun& run, const std::set<int>& lost) {
  check_same(outcome, run);
  const auto& wanted = undisturbed(run);
  DOCTEST_CHECK(outcome.attempts == 1);
  for (int rank = 0; rank < run.workers; ++rank)
    DOCTEST_CHECK((outcome.results[static_cast<std::size_t>(rank)]["first"] == 0) == !lost.contains(rank));
  // Every round came, once.
  DOCTEST_REQUIRE(outcome.rounds.size() == wanted.rounds.size());
  for (std::size_t round = 0; round < wanted.rounds.size(); ++round)
    DOCTEST_CHECK(outcome.rounds[round][0]["step"] == wanted.rounds[round][0]["step"]);
}

}  // namespace troupe::test
