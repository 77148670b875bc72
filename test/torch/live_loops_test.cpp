// SPDX-License-Identifier: Apache-2.0
// Functions with several loops, one after the other: workers are lost, and come, in a later one than the first.
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "test/torch/model_support.hpp"

namespace train = troupe::train;
namespace tt = troupe::train::torch;
using namespace troupe::test;
using troupe::Json;

namespace {

constexpr std::int64_t loops = 3;
constexpr std::int64_t steps_of_loop = 5;

/// Three loops of five steps; behind each the worker does something alone, which leaves traces in all that a step
/// begins with, reports and saves. The config's "loop" is how a loop is written ("steps", "epochs", "left early",
/// "by hand"), "between" what is unusual between two; rank `dies[i][0]` dies in step `dies[i][1]`, once.
Json train_in_loops(const troupe::Config& config) {
  const std::string kind = config["loop"];
  const std::string between = config.value("between", "");
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::Dropout(0.3),
                            torch::nn::Linear(8, 2));
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  net = tt::prepare_model(net);
  const auto samples = steps_of_loop * 2 * train::world_size();  // an epoch is a loop
  auto loader =
      tt::prepare_data_loader({waves({samples, 4}, 1), waves({samples, 2}, 2)}, {.batch_size = 2, .shuffle = true});
  double losses = 0;
  std::int64_t first = -1;
  train::Recoverable state({.model = net, .optimizer = optimizer, .loader = loader, .values = {{"losses", losses}}});
  const auto one_step = [&] {
    if (first < 0) first = state.step();
    auto& [inputs, targets] = loader.next();
    optimizer.zero_grad();
    auto loss = torch::mse_loss(net->forward(inputs), targets);
    for (const auto& death : config["dies"])
      if (state.step() == death[1] && train::world_rank() == death[0] &&
          is_first(config["folder"].get<std::string>(), death.dump()))
        ::kill(::getpid(), SIGKILL);
    loss.backward();
    const auto mean = tt::all_reduce(loss.detach(), tt::Reduce::mean);
    optimizer.step();
    losses += mean.item<double>();
  };
  for (std::int64_t loop = 1; loop <= loops; ++loop) {
    const auto report = [&] { train::report({{"step", state.step()}}); };
    if (kind == "by hand") {
      state.start();
      while (state.step() < loop * steps_of_loop) try {
          one_step();
          state.commit();
          report();
        } catch (const troupe::GroupLost&) {
          state.recover();
        }
      state.finish();
    } else {
      for (auto step :
           kind == "epochs" ? state.epochs(loop) : state.steps(kind == "left early" ? 100 : loop * steps_of_loop)) {
        step.run(one_step);
        report();
        if (kind == "left early" && (step.number() + 1) % steps_of_loop == 0) break;
      }
    }
    torch::NoGradGuard no_grad;
    tt::barrier();
    auto other = tt::prepare_data_loader({waves({8, 4}, 3), waves({8, 2}, 4)}, {.batch_size = 2});
    for (auto& [inputs, targets] : other) torch::rand_like(inputs + targets.sum());
    net->forward(waves({8, 4}, 3));
    losses += 1;
    optimizer.param_groups()[0].options().set_lr(0.05 / static_cast<double>(1 + loop));
    if (between == "talk") tt::all_reduce(torch::ones({1}));
    if (between == "change") net->parameters()[0].mul_(0.5);
    train::report({{"loop", loop}});
    train::save_checkpoint(state.checkpoint());
  }
  std::vector<Values> buffers;
  for (const auto& buffer : net->buffers()) buffers.push_back(values_of(buffer));
  return {{"weights", parameters_of(*net)},
          {"buffers", buffers},
          {"losses", losses},
          {"rest", values_of(torch::rand({2}))},
          {"first", first}};
}

struct Outcome {
  std::vector<Json> results;
  std::vector<std::vector<Json>> rounds;
  int attempts = 0;
};

Outcome train_with(Json config, int workers, const Json& dies) {
  TestTrainer trainer({.backend = troupe::TorchConfig{.timeout_s = 60},
                       .num_workers = workers,
                       .resources_per_worker = {{"CPU", 1}},
                       .max_retries = 10});
  config["folder"] = trainer.folder().string();
  config["dies"] = dies;
  auto recorder = std::make_shared<Recorder>();
  Outcome outcome;
  outcome.results = trainer->run(troupe::fn<train_in_loops>, {.config = config, .callbacks = {recorder}});
  for (const auto& round : recorder->rounds) {
    outcome.rounds.emplace_back();
    for (const auto& report : round)
      outcome.rounds.back().push_back({report.value("step", -1), report.value("loop", -1)});
  }
  for (const auto& info : recorder->infos)
    outcome.attempts = std::max(outcome.attempts, static_cast<int>(info.attempt));
  return outcome;
}

/// The results are those of a run in which nobody dies.
Outcome check_losses(const Json& config, int workers, const Json& dies, int attempts) {
  auto wanted = train_with(config, workers, Json::array());
  auto outcome = train_with(config, workers, dies);
  DOCTEST_CHECK(outcome.attempts == attempts);
  for (std::size_t rank = 0; rank < outcome.results.size(); ++rank)
    for (const char* key : {"weights", "buffers", "losses", "rest"})
      DOCTEST_CHECK(outcome.results[rank][key] == wanted.results[rank][key]);
  if (attempts == 1) {
    DOCTEST_CHECK(wanted.rounds.size() == loops * (steps_of_loop + 1));
    DOCTEST_CHECK(outcome.rounds.size() == wanted.rounds.size());
    for (std::size_t i = 0; i < std::min(outcome.rounds.size(), wanted.rounds.size()); ++i)
      DOCTEST_CHECK(outcome.rounds[i].front() == wanted.rounds[i].front());
  }
  return outcome;
}

}  // namespace

DOCTEST_TEST_CASE("a worker lost in a later loop of its function is replaced in place") {
  for (const char* loop : {"steps", "epochs", "left early"}) {
    const std::string written = loop;
    DOCTEST_CAPTURE(written);
    const auto outcome = check_losses({{"loop", loop}}, 2, {{1, 7}}, 1);
    DOCTEST_CHECK(outcome.results[1]["first"] == 7);
  }
}

DOCTEST_TEST_CASE("workers lost in several loops are replaced in place") {
  const auto outcome = check_losses({{"loop", "steps"}}, 3, {{1, 2}, {0, 5}, {2, 9}, {1, 13}}, 1);
  DOCTEST_CHECK(outcome.results[0]["first"] == 5);
  DOCTEST_CHECK(outcome.results[1]["first"] == 13);
  DOCTEST_CHECK(outcome.results[2]["first"] == 9);
}

DOCTEST_TEST_CASE("where a later loop cannot be reached alone the function runs again") {
  check_losses({{"loop", "by hand"}}, 2, {{1, 7}}, 2);
  check_losses({{"loop", "steps"}, {"between", "talk"}}, 2, {{1, 7}}, 2);
  check_losses({{"loop", "steps"}, {"between", "change"}}, 2, {{1, 7}}, 2);
}

namespace {

/// A loop of two steps, one that ends when three workers are in it, and another of two steps.
Json grow_in_second_loop() {
  torch::nn::Linear net(2, 1);
  fill(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.001);
  net = tt::prepare_model(net);
  std::vector<int> worlds;
  std::int64_t first = -1;
  train::Recoverable state({.model = net, .optimizer = optimizer, .values = {{"worlds", worlds}}});
  const auto one_step = [&] {
    if (first < 0) first = state.step();
    optimizer.zero_grad();
    net->forward(torch::ones({4, 2})).mean().backward();
    optimizer.step();
    if (worlds.empty() || worlds.back() != train::world_size()) worlds.push_back(train::world_size());
  };
  for (auto step : state.steps(2)) step.run(one_step);
  for (auto step : state.steps(1000000)) {
    step.run(one_step);
    train::report({{"step", step.number()}});
    if (worlds == std::vector<int>{2, 3}) break;
  }
  for (auto step : state.steps(state.step() + 3)) step.run(one_step);
  return {{"weights", parameters_of(*net)}, {"worlds", worlds}, {"first", first}};
}

}  // namespace

DOCTEST_TEST_CASE("a worker that makes the group larger comes into a later loop") {
  TestTrainer trainer(
      {.backend = troupe::TorchConfig{.timeout_s = 60}, .num_workers = {1, 3}, .resources_per_worker = {{"CPU", 1}}});
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [&](const auto&, const troupe::ResultInfo& info) {
    if (info.round == 3) trainer->resize(3);
  };
  trainer->start();
  trainer->resize(2);
  const auto results = trainer->run(troupe::fn<grow_in_second_loop>, {.callbacks = {callback}});
  DOCTEST_REQUIRE(results.size() == 3);
  for (const auto& result : results) {
    DOCTEST_CHECK(result["worlds"] == Json{2, 3});
    DOCTEST_CHECK(result["weights"] == results[0]["weights"]);
    DOCTEST_CHECK((result["first"] == 0) == (&result != &results.back()));
  }
}
