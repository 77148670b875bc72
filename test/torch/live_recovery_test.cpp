// SPDX-License-Identifier: Apache-2.0
// Workers that are killed in the middle of a step: the others go on in place, a new one takes their state over, and the
// result has the bits of a run in which nobody died. At random times: live_faults_test.cpp.
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "test/torch/live_training.hpp"

namespace train = troupe::train;
namespace tt = troupe::train::torch;
using namespace troupe::test;
using namespace std::chrono_literals;
using troupe::Json;

DOCTEST_TEST_CASE("a worker killed anywhere in a step costs no step, and the result has the same bits") {
  const auto seed = std::random_device()();
  DOCTEST_MESSAGE("seed ", seed);
  DOCTEST_CAPTURE(seed);
  std::mt19937 random(seed);
  for (const char* when : {"forward", "backward", "before step", "after step", "after run"})
    for (int workers : {2, 3}) {
      const std::string place = when;
      DOCTEST_CAPTURE(place);
      DOCTEST_CAPTURE(workers);
      const int rank = static_cast<int>(random() % static_cast<unsigned>(workers));
      const auto step = static_cast<std::int64_t>(1 + random() % 12);
      DOCTEST_CAPTURE(rank);
      DOCTEST_CAPTURE(step);
      const LiveRun run{.workers = workers, .faults = Json::array({fault(rank, step, when)})};
      check_live(train_with(run), run, {rank});
    }
}

DOCTEST_TEST_CASE("workers killed one after the other, two at once, and while they join cost no step") {
  const auto survives = [](const Json& faults, const std::set<int>& lost) {
    const LiveRun run{.workers = 3, .faults = faults};
    check_live(train_with(run), run, lost);
  };
  survives({fault(0, 3, "backward"), fault(2, 6, "forward"), fault(0, 9, "before step")}, {0, 2});
  survives({fault(1, 4, "forward"), fault(2, 4, "backward")}, {1, 2});
  survives({fault(1, 4, "forward"), fault(1, 0, "second start")}, {1});
}

DOCTEST_TEST_CASE("workers that talk over Gloo go on in place, too") {
  const LiveRun run{
      .workers = 3, .faults = {fault(0, 3, "backward"), fault(2, 7, "before step")}, .shared_memory = false};
  check_live(train_with(run), run, {0, 2});
}

DOCTEST_TEST_CASE("a step that throws on one worker is made again on all, in the same processes") {
  for (int workers : {1, 2}) {
    DOCTEST_CAPTURE(workers);
    const LiveRun run{.workers = workers, .faults = Json::array({fault(workers - 1, 4, "throw")})};
    check_live(train_with(run), run, {});
  }
}

DOCTEST_TEST_CASE("a worker that failed inside the optimizer's step takes another one's state") {
  const LiveRun run{.workers = 3, .faults = {fault(0, 5, "optimizer"), fault(1, 5, "before step")}};
  check_same(train_with(run), run);
  // So does one that had joined the others before.
  const LiveRun joined{.workers = 3,
                       .faults = {fault(0, 2, "forward"), fault(0, 5, "optimizer"), fault(1, 5, "before step")}};
  check_live(train_with(joined), joined, {0, 1});
}

DOCTEST_TEST_CASE("when no worker that is left holds a whole state, the function is started again") {
  LiveRun run{.faults = {fault(0, 5, "optimizer"), fault(1, 5, "before step")},
              .options = {.max_retries = 1, .retry_user_errors = true}};
  auto outcome = train_with(run);
  check_same(outcome, run);
  DOCTEST_CHECK(outcome.attempts == 2);
  DOCTEST_CHECK(outcome.results[0]["first"] == 0);
  // From its checkpoint, if it saves some.
  run.config["checkpoints"] = 2;
  outcome = train_with(run);
  check_same(outcome, run);
  DOCTEST_CHECK(outcome.attempts == 2);
  DOCTEST_CHECK(outcome.results[0]["first"] == 4);
}

DOCTEST_TEST_CASE("a new worker that talks to the others before its loop has the function started again") {
  const LiveRun run{.faults = Json::array({fault(1, 5, "forward")}), .config = {{"talks_before_steps", true}}};
  const auto outcome = train_with(run);
  check_same(outcome, run);
  DOCTEST_CHECK(outcome.attempts == 2);
}

DOCTEST_TEST_CASE("a loop that saves checkpoints goes on in place, and a worker lost in a save leaves whole ones") {
  const auto survives = [](LiveRun run, int lost) {
    run.config["checkpoints"] = 3;
    const auto outcome = train_with(run);
    check_live(outcome, run, {lost});
    DOCTEST_REQUIRE(outcome.checkpoint);
    DOCTEST_CHECK(outcome.checkpoint->at<int>("step") == 24);
    DOCTEST_CHECK(outcome.checkpoint->at<double>("losses") == outcome.results[0]["losses"]);
  };
  survives({.faults = Json::array({fault(0, 7, "forward")})}, 0);
  survives({.faults = Json::array({fault(1, 8, "after run")})}, 1);
  // Rank 0 writes; 8 MB take longer than its next instruction.
  survives({.faults = Json::array({fault(0, 8, "in save")}), .config = {{"ballast", 2 << 20}}}, 0);
}

DOCTEST_TEST_CASE("a worker that is taken away with notice is replaced in place, at no cost") {
  const LiveRun run{.config = {{"step_us", 2000}, {"waits_at", 100}}, .num_epochs = 20, .options = {.max_retries = 0}};
  const auto outcome = train_with(run, [](troupe::Trainer& trainer, const troupe::ResultInfo& info) {
    if (info.round != 10) return false;
    const auto pid_of_rank_1 = [&] { return trainer.status().workers.at(1).pid; };
    const auto taken = pid_of_rank_1();
    trainer.preempt(1, 50ms);
    while (pid_of_rank_1() == taken) std::this_thread::yield();
    return true;
  });
  check_live(outcome, run, {1});
  DOCTEST_REQUIRE(outcome.decisions.size() == 1);
  DOCTEST_CHECK(outcome.decisions[0]["cause"] == "preemption");
}

namespace {

/// Two models with an optimizer each, a scaler that changes its scale, a schedule under a name; "by_hand" without
/// steps(). Rank 1 dies once.
Json train_much(const troupe::Config& config) {
  torch::nn::Linear net(4, 2);
  torch::nn::Linear other(2, 1);
  fill(*net);
  fill(*other);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::optim::Adam other_optimizer(other->parameters(), 0.01);
  tt::CosineAnnealingLR schedule(optimizer, {.t_max = 12});
  tt::GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  net = tt::prepare_model(net);
  other = tt::prepare_model(other);
  auto loader = tt::prepare_data_loader({waves({48, 4}, 1), waves({48, 1}, 2)}, {.batch_size = 2, .shuffle = true});
  std::int64_t count = 0;
  std::int64_t first = -1;
  train::Recoverable state({.model = net, .optimizer = optimizer, .scaler = scaler, .loader = loader});
  state.add("other", other)
      .add("other optimizer", train::RecoverableOptimizer(other_optimizer))
      .add("schedule", schedule)
      .add({"count", count});
  const auto one_step = [&] {
    if (first < 0) first = state.step();
    auto& [inputs, targets] = loader.next();
    optimizer.zero_grad();
    other_optimizer.zero_grad();
    scaler.scale(torch::mse_loss(other->forward(net->forward(inputs)), targets)).backward();
    if (state.step() == 5 && train::world_rank() == config["dies"] &&
        is_first(config["folder"].get<std::string>(), "dead"))
      ::kill(::getpid(), SIGKILL);
    scaler.unscale(optimizer);
    scaler.unscale(other_optimizer);
    scaler.step(optimizer);
    scaler.step(other_optimizer);
    scaler.update();
    schedule.step();
    count += 1;
  };
  if (config["by_hand"]) {
    state.start();
    while (state.step() < 12) try {
        one_step();
        state.commit();
        train::report({{"step", state.step()}});
      } catch (const troupe::GroupLost&) {
        state.recover();
      }
    state.finish();
  } else {
    for (auto step : state.steps(12)) {
      step.run(one_step);
      train::report({{"step", step.number() + 1}});
    }
  }
  return {{"weights", {parameters_of(*net), parameters_of(*other)}},
          {"scaler", scaler.state()},
          {"rate", schedule.get_last_lr()},
          {"count", count},
          {"first", first}};
}

}  // namespace

DOCTEST_TEST_CASE("scaler, schedule, further models and values recover too, also in a loop by hand") {
  const auto train = [](bool by_hand, int dies) {
    TestTrainer trainer({.backend = "torch", .num_workers = 2, .resources_per_worker = {{"CPU", 1}}});
    auto recorder = std::make_shared<Recorder>();
    const auto results =
        trainer->run(troupe::fn<train_much>,
                     {.config = {{"by_hand", by_hand}, {"dies", dies}, {"folder", trainer.folder().string()}},
                      .callbacks = {recorder}});
    DOCTEST_CHECK(recorder->rounds.size() == 12);
    for (std::size_t round = 0; round < recorder->rounds.size(); ++round)
      for (const auto& report : recorder->rounds[round]) DOCTEST_CHECK(report["step"] == round + 1);
    return results;
  };
  const auto wanted = train(false, -1);
  DOCTEST_CHECK(wanted[0]["count"] == 12);
  DOCTEST_CHECK(wanted[0]["scaler"]["scale"] == 8 * 16);
  for (bool by_hand : {false, true})
    for (int dies : {0, 1}) {
      DOCTEST_CAPTURE(by_hand);
      DOCTEST_CAPTURE(dies);
      const auto results = train(by_hand, dies);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        DOCTEST_CAPTURE(rank);
        for (const char* key : {"weights", "scaler", "rate", "count"})
          DOCTEST_CHECK(results[rank][key] == wanted[rank][key]);
        DOCTEST_CHECK(results[rank]["first"] == (static_cast<int>(rank) == dies ? 5 : 0));  // in place
      }
    }
}

namespace {

constexpr std::int64_t samples = 96;

/// Trains whole epochs until it has run on 2, 3 and 1 workers; gives how often each sample was used.
Json train_elastic(const troupe::Config& config) {
  torch::nn::Linear net(2, 1);
  fill(*net);
  auto used = net->register_buffer("used", torch::zeros({samples}));
  torch::optim::SGD optimizer(net->parameters(), 0.001);
  net = tt::prepare_model(net);
  const auto rows = torch::arange(samples).to(torch::kFloat);
  auto loader =
      tt::prepare_data_loader({torch::stack({rows, rows.sin()}, 1), rows}, {.batch_size = 4, .shuffle = true});
  std::vector<int> worlds;
  std::vector<std::int64_t> taken;
  train::Recoverable state({.model = net,
                            .optimizer = optimizer,
                            .loader = loader,
                            .values = {{"worlds", worlds}, {"taken", taken}},
                            .batch = config["keep_global"].get<bool>() ? train::ElasticBatch::keep_global
                                                                       : train::ElasticBatch::keep_per_worker});
  for (auto step : state.epochs(100000)) {
    step.run([&] {
      auto& [inputs, targets] = loader.next();
      optimizer.zero_grad();
      net->forward(inputs).mean().backward();
      const auto mine = targets.narrow(0, 0, targets.size(0) - static_cast<std::int64_t>(loader.padded()));
      auto counts = torch::zeros({samples});
      counts.index_add_(0, mine.to(torch::kLong), torch::ones({mine.size(0)}));
      tt::all_reduce(counts);
      optimizer.step();
      used += counts;
      const bool is_last = loader.cursor() == samples;  // of its epoch: it may be smaller
      if (!is_last && (worlds.empty() || worlds.back() != train::world_size())) {
        worlds.push_back(train::world_size());
        taken.push_back(counts.sum().item<std::int64_t>());
      }
    });
    train::report({{"worlds", worlds.size()}});
    if (worlds == std::vector<int>{2, 3, 1} && loader.cursor() == samples) break;
  }
  return {{"used", values_of(used)}, {"epoch", loader.epoch() + 1}, {"worlds", worlds}, {"taken", taken}};
}

/// Every worker saves its part of every step, until there are as many steps of each size of the group as were asked
/// for. A worker that must leave returns by itself.
Json save_in_shards(const troupe::Config& config) {
  torch::nn::Linear net(2, 1);
  fill(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.001);
  net = tt::prepare_model(net);
  std::vector<int> worlds;
  train::Recoverable state({.model = net, .optimizer = optimizer, .values = {{"worlds", worlds}}});
  for (auto step : state.steps(100000)) {
    if (train::should_stop()) break;
    step.run([&] {
      optimizer.zero_grad();
      net->forward(torch::ones({4, 2})).mean().backward();
      optimizer.step();
      if (worlds.empty() || worlds.back() != train::world_size()) worlds.push_back(train::world_size());
    });
    train::save_checkpoint({{"step", step.number()}}, {.sharded = true});
    train::report({{"worlds", worlds}});
    if (worlds == config["worlds"].get<std::vector<int>>()) break;
  }
  train::flush_checkpoints();
  return worlds;
}

}  // namespace

DOCTEST_TEST_CASE("a group that saves in shards gets smaller and larger again, and goes on saving") {
  TestTrainer trainer({.backend = "torch", .num_workers = {1, 3}, .resources_per_worker = {{"CPU", 1}}});
  auto callback = std::make_shared<FunctionCallback>();
  std::size_t told = 0;
  const std::vector<int> worlds{3, 2, 3, 1};
  callback->on_result = [&](const std::vector<Json>& results, const auto&) {
    const auto seen = results[0]["worlds"].size();
    if (seen <= told || seen == worlds.size()) return;
    told = seen;
    trainer->resize(worlds[seen]);
  };
  trainer->start();
  trainer->resize(3);
  const auto results =
      trainer->run(troupe::fn<save_in_shards>, {.config = {{"worlds", worlds}}, .callbacks = {callback}});
  DOCTEST_REQUIRE(results.size() == 1);
  DOCTEST_CHECK(results[0] == Json(worlds));
  DOCTEST_REQUIRE(trainer->latest_checkpoint());
  DOCTEST_CHECK(trainer->latest_checkpoint()->world_size() == 1);
}

DOCTEST_TEST_CASE("workers come and go in the middle of an epoch, and each sample is used once in it") {
  for (bool keep_global : {false, true}) {
    DOCTEST_CAPTURE(keep_global);
    TestTrainer trainer({.backend = "torch", .num_workers = {1, 3}, .resources_per_worker = {{"CPU", 1}}});
    auto callback = std::make_shared<FunctionCallback>();
    int awaited = 1;
    callback->on_result = [&](const std::vector<Json>& results, const auto&) {
      if (results[0]["worlds"] != awaited) return;
      if (awaited == 1) trainer->resize(3);
      if (awaited == 2) trainer->resize(1);
      awaited += 1;
    };
    trainer->start();
    trainer->resize(2);
    const auto results =
        trainer->run(troupe::fn<train_elastic>, {.config = {{"keep_global", keep_global}}, .callbacks = {callback}});
    DOCTEST_REQUIRE(results.size() == 1);
    DOCTEST_CHECK(results[0]["worlds"] == Json{2, 3, 1});
    // Three workers cannot share 8 samples: each takes 2.
    DOCTEST_CHECK(results[0]["taken"] == (keep_global ? Json{8, 6, 8} : Json{8, 12, 4}));
    DOCTEST_CHECK(results[0]["used"] == Json(Values(samples, results[0]["epoch"].get<double>())));
  }
}
