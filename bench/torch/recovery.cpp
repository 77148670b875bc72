// SPDX-License-Identifier: Apache-2.0
// recovery.*: faults in the middle of a training, and the time until all workers have made a new step. The state has
// 64 MB; a step is short, so that what is measured is the recovery.
#include <sys/mman.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "bench/cases.hpp"
#include "bench/torch/recovery_injector.hpp"
#include "bench/torch/recovery_peers.hpp"

namespace troupe::bench {
namespace {

constexpr std::int64_t state_elements = std::int64_t{16} << 20;  // 64 MB of floats
constexpr int steps_per_checkpoint = 5;

/// One step of all workers together; true: it was the last one.
bool make_step(at::Tensor& state, const std::filesystem::path& folder) {
  if (train::world_rank() == 1 && told_to_throw(folder)) throw std::runtime_error("a fault on purpose");
  auto gradient = at::zeros({4096});
  if (train::world_rank() == 0 && told_to_end(folder)) gradient[0] = 1;
  train::torch::all_reduce(gradient);
  state.narrow(0, 0, gradient.numel()).add_(gradient);
  return gradient[0].item<float>() > 0;
}

/// Without anything that survives in memory: each attempt goes on from the latest checkpoint.
void train_from_checkpoints(const Config& config) {
  const std::filesystem::path folder = config["folder"].get<std::string>();
  auto state = at::zeros({state_elements});
  std::int64_t step = 0;
  if (const auto checkpoint = train::load_checkpoint()) {
    state.copy_(checkpoint->at<at::Tensor>("state"));
    step = checkpoint->at<std::int64_t>("step");
  }
  for (bool last = false; !last;) {
    last = make_step(state, folder);
    train::report(step_report(++step));
    if (step % steps_per_checkpoint == 0) train::save_checkpoint({{"state", state}, {"step", step}});
  }
}

/// 64 MB of state, few of them trained, so that steps are short.
struct NetImpl : ::torch::nn::Module {
  NetImpl()
      : ballast(register_parameter("ballast", ::torch::zeros({state_elements}), false)),
        layer(register_module("layer", ::torch::nn::Linear(64, 64))) {}
  ::torch::Tensor ballast;
  ::torch::nn::Linear layer;
};
TORCH_MODULE(Net);

/// The state stays in memory, and the workers that are left go on where they are.
struct LiveTraining {
  explicit LiveTraining(const Config& config)
      : folder(config["folder"].get<std::string>()), optimizer(net->parameters(), 0.01) {
    train::torch::prepare_model(net);
  }

  /// True: it was the last one.
  bool step() {
    if (train::world_rank() == 1 && told_to_throw(folder)) throw std::runtime_error("a fault on purpose");
    if (train::world_rank() == 1 && told_to_hang(folder)) hang_other_threads();
    auto end = at::zeros({1});
    if (train::world_rank() == 0 && told_to_end(folder)) end[0] = 1;
    optimizer.zero_grad();
    net->layer->forward(::torch::ones({8, 64})).square().mean().backward();
    train::torch::all_reduce(end);
    optimizer.step();
    return end.item<float>() > 0;
  }

  std::filesystem::path folder;
  Net net;
  ::torch::optim::SGD optimizer;
};

void train_live(const Config& config) {
  LiveTraining training(config);
  bool last = false;
  train::Recoverable state({.model = training.net, .optimizer = training.optimizer, .values = {{"last", last}}});
  for (auto step : state.steps(1 << 30)) {
    step.run([&] { last = training.step(); });
    train::report(step_report(step.number()));
    if (last) break;
  }
}

template <class Body>
double timed(Body&& body) {
  const auto begin = now_ns();
  body();
  return ms_since(begin);
}

/// How much longer than its body a step of 100 ms takes.
Json time_commits(const Config& config) {
  LiveTraining training(config);
  Json commits = Json::array();
  train::Recoverable state({.model = training.net, .optimizer = training.optimizer});
  for (auto step : state.steps(config["steps"])) {
    double inside = 0;
    const auto all = timed([&] {
      step.run([&] {
        inside = timed([&] {
          training.step();
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
        });
      });
    });
    commits.push_back(all - inside);
  }
  return commits;
}

/// How long steps take without a Recoverable and with one, a few at a time in turn.
Json compare_steps(const Config& config) {
  constexpr int in_a_row = 3;
  ::torch::nn::Linear model(::torch::nn::LinearOptions(4096, 4096).bias(false));  // 64 MB, all of them trained
  ::torch::optim::SGD optimizer(model->parameters(), 1e-6);
  train::torch::prepare_model(model);
  const auto inputs = ::torch::ones({8, 4096});
  const auto body = [&] {
    optimizer.zero_grad();
    model->forward(inputs).square().mean().backward();
    optimizer.step();
  };
  for (int warm_up = 0; warm_up < in_a_row; ++warm_up) body();
  Json times{{"without", Json::array()}, {"with", Json::array()}};
  train::Recoverable state({.model = model, .optimizer = optimizer});
  for (int turn = 0; turn < config["turns"]; ++turn) {
    for (int i = 0; i < in_a_row; ++i) times["without"].push_back(timed(body));
    for (auto step : state.steps(state.step() + in_a_row)) times["with"].push_back(timed([&] { step.run(body); }));
  }
  return times;
}

/// Rank 1 has 2 GB of memory in use; the others note when they hear of its death.
void train_with_a_large_rank(const Config& config) {
  const std::filesystem::path folder = config["folder"].get<std::string>();
  constexpr std::size_t size = std::size_t{2} << 30;
  if (train::world_rank() == 1) {
    void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory");
    ::madvise(memory, size, MADV_NOHUGEPAGE);
    std::memset(memory, 1, size);
  }
  auto state = at::zeros({4096});
  std::int64_t step = 0;
  if (const auto checkpoint = train::load_checkpoint()) step = checkpoint->at<std::int64_t>("step");
  try {
    for (bool last = false; !last;) {
      last = make_step(state, folder);
      train::report(step_report(++step));
      if (step % steps_per_checkpoint == 0) train::save_checkpoint({{"step", step}});
    }
  } catch (...) {  // GroupLost in a collective, Stopped elsewhere
    std::ofstream(folder / "heard", std::ios::app) << now_ns() << "\n";
    throw;
  }
}

TrainerOptions recovery_options(int workers, int spares) {
  auto options = trainer_options(workers);
  options.backend = TorchConfig{};
  options.resources_per_worker = {{"CPU", 1}};
  options.max_retries = -1;
  options.retry_user_errors = true;
  options.stopped_grace = std::chrono::milliseconds(0);
  options.spares = spares;
  return options;
}

std::filesystem::path fresh_folder(const std::string& name) {
  const auto folder = scratch_folder() / name;
  std::filesystem::create_directories(folder);
  return folder;
}

void add_percentiles(const Output& output, const std::string& name, const std::vector<double>& samples, double floor) {
  if (samples.empty()) return;
  output.add({name + ".p50", median(samples), "ms", samples.size(), floor});
  output.add({name + ".p99", percentile(samples, 0.99), "ms", samples.size(), floor});
  output.add({name + ".max", percentile(samples, 1), "ms", samples.size(), floor});
}

void append(std::vector<double>& samples, const Json& more) {
  for (const auto& sample : more) samples.push_back(sample);
}

template <class Function>
std::shared_ptr<Injector> harm(const std::string& name, Function function, Injector::Fault fault, int injections,
                               const TrainerOptions& options, int rank = -1) {
  const auto folder = fresh_folder(name);
  auto injector = std::make_shared<Injector>(fault, injections, folder, rank);
  Trainer trainer(options);
  trainer.run(function, {.config = {{"folder", folder.string()}}, .callbacks = {injector}});
  return injector;
}

/// How early the others hear of the death of a process of 2 GB, and when it is gone.
void bench_detection(const Output& output) {
  const auto folder = fresh_folder("detect");
  auto injector = std::make_shared<Injector>(Injector::Fault::kill, 20, folder, 1);
  Trainer trainer(recovery_options(2, 0));
  trainer.run(fn<train_with_a_large_rank>, {.config = {{"folder", folder.string()}}, .callbacks = {injector}});
  std::vector<double> heard;
  std::ifstream times(folder / "heard");
  const auto& faults = injector->faults();
  for (std::int64_t time = 0; times >> time;)
    if (const auto next = std::upper_bound(faults.begin(), faults.end(), time); next != faults.begin())
      heard.push_back(static_cast<double>(time - *(next - 1)) / 1e6);
  add_percentiles(output, "recovery.detect.2gb", heard, 5);
  output.add({"recovery.detect.2gb.exit", median(injector->gone()), "ms", injector->gone().size(), 1e9});
}

void bench_commit(const Output& output) {
  Trainer trainer(recovery_options(2, 0));
  const auto results =
      trainer.run(fn<time_commits>, {.config = {{"folder", fresh_folder("commit").string()}, {"steps", 40}}});
  std::vector<double> commits;
  for (const auto& result : results) append(commits, result);
  output.add({"recovery.commit", median(commits), "ms", commits.size(), 3});
}

void bench_overhead(const Output& output) {
  Trainer trainer(recovery_options(2, 1));
  std::vector<double> without;
  std::vector<double> with;
  for (const auto& times : trainer.run(fn<compare_steps>, {.config = {{"turns", 60}}})) {
    append(without, times["without"]);
    append(with, times["with"]);
  }
  // Of the faster half: what else the machine does only adds to a step, more than what is looked for.
  output.add(
      {"recovery.overhead", 100 * (percentile(with, 0.25) / percentile(without, 0.25) - 1), "%", with.size(), 1});
}

/// A worker whose control thread hangs, and whose function goes on for a while.
void bench_hang(const Output& output, int injections) {
  constexpr std::chrono::milliseconds deadline(1000);
  auto options = recovery_options(2, 1);
  options.ping_interval = deadline / 10;
  options.ping_deadline = deadline;
  const auto hang = harm("hang", fn<train_live>, Injector::Fault::hang, injections, options, 1);
  // It is noticed within the deadline; what is seen from here is the end of its process, which follows.
  constexpr double longest_end = 50;
  add_percentiles(output, "recovery.hang.gone", hang->gone(), static_cast<double>(deadline.count()) + longest_end);
  add_percentiles(output, "recovery.hang", hang->recovered(), static_cast<double>(deadline.count()) + 500);
}

}  // namespace

void bench_recovery(const Output& output) {
  constexpr int injections = 20;
  using Fault = Injector::Fault;
  bench_detection(output);
  for (const int workers : {2, 4})
    for (const int spares : {1, 0}) {
      const auto name = fmt::format("recovery.kill.w{}{}", workers, spares > 0 ? "" : ".nospare");
      const auto killed = harm(name, fn<train_live>, Fault::kill, injections, recovery_options(workers, spares));
      add_percentiles(output, name, killed->recovered(), spares > 0 ? 300 : 1500);
      output.add({name + ".steps_lost", percentile(killed->steps_lost(), 1), "steps", killed->steps_lost().size(), 0});
    }
  bench_commit(output);
  bench_overhead(output);
  for (const int workers : {2, 4}) {
    const auto name = fmt::format("recovery.restart.w{}", workers);
    const auto restart = harm(name, fn<train_from_checkpoints>, Fault::kill, injections, recovery_options(workers, 0));
    add_percentiles(output, name, restart->recovered(), 1500);
    add_peer(output, name, workers);
  }
  const auto stop = harm("stop", fn<train_live>, Fault::stop, injections, recovery_options(2, 1));
  add_percentiles(output, "recovery.stop.noticed", stop->gone(), 50);
  add_percentiles(output, "recovery.stop", stop->recovered(), 500);
  bench_hang(output, injections);
  const auto thrown = harm("exception", fn<train_live>, Fault::exception, injections, recovery_options(2, 1));
  add_percentiles(output, "recovery.exception", thrown->recovered(), 100);
}

}  // namespace troupe::bench
