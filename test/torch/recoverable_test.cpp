// SPDX-License-Identifier: Apache-2.0
// Recoverable where nobody dies, what it is made of, and what it refuses. Faults: live_recovery_test.cpp.
#include <torch/torch.h>

#include <set>

#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "backends/torch/prepared_models.hpp"
#include "backends/torch/torch_group.hpp"
#include "runtime/session/session.hpp"
#include "test/torch/model_support.hpp"

namespace train = troupe::train;
namespace tt = troupe::train::torch;
using namespace troupe::test;
using troupe::ErrorCode;
using troupe::Json;

namespace {

/// Weights after some steps; with "stop_at", saves there and returns early.
Json train_steps(const troupe::Config& config) {
  torch::manual_seed(1);
  const auto x = torch::randn({40, 4});
  const auto y = torch::randn({40, 2});
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Dropout(0.3), torch::nn::Linear(8, 2));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  net = tt::prepare_model(net);
  auto loader = tt::prepare_data_loader({x, y}, {.batch_size = 4, .shuffle = true});
  torch::manual_seed(static_cast<std::uint64_t>(train::world_rank()));
  int own = 0;
  auto own_inputs = torch::zeros({4});
  const auto one_step = [&] {
    auto& [inputs, targets] = loader.next();
    own += 1 + train::world_rank();
    own_inputs += inputs[0];
    optimizer.zero_grad();
    torch::mse_loss(net->forward(inputs), targets).backward();
    optimizer.step();
  };
  std::int64_t count = 0;
  train::Recoverable state({.model = net,
                            .optimizer = optimizer,
                            .loader = loader,
                            .values = {{"count", count}},
                            .own_values = {{"own_count", own}}});
  state.add_own({"own_inputs", own_inputs});
  std::int64_t first = 0;
  if (config.value("plain", false)) {
    for (count = 0; count < 12; ++count) one_step();
  } else if (config.value("by_hand", false)) {
    state.start();
    while (state.step() < 12) {
      one_step();
      count += 1;
      state.commit();
    }
    state.finish();
  } else {
    state.resume();
    first = state.step();
    for (auto step : state.steps(config.value("stop_at", 12))) {
      step.run(one_step);
      step.run([&] { count += 1; });
    }
    if (config.contains("stop_at")) train::save_checkpoint(state.checkpoint());
  }
  return {{"weights", parameters_of(*net)},      {"count", count}, {"first", first},
          {"rest", values_of(torch::rand({2}))}, {"own", own},     {"own_inputs", values_of(own_inputs)}};
}

std::vector<Json> weights_of(const std::vector<Json>& results) {
  std::vector<Json> weights;
  for (const auto& result : results)
    weights.push_back({result["weights"], result["count"], result["rest"], result["own"], result["own_inputs"]});
  return weights;
}

/// Of two workers together.
template <class Function>
void check_warned_once(const std::string& warning, Function function) {
  std::string text;
  {
    CapturedOutput err(2);
    TestTrainer trainer({.backend = "torch", .num_workers = 2, .resources_per_worker = {{"CPU", 1}}});
    trainer->run(function);
    trainer->shutdown();
    text = err.text();
  }
  const auto found = text.find(warning);
  DOCTEST_CHECK_MESSAGE(found != std::string::npos, text);
  DOCTEST_CHECK(text.find(warning, found + 1) == std::string::npos);
}

}  // namespace

DOCTEST_TEST_CASE("the steps of a Recoverable compute what a plain loop computes, with any number of workers") {
  for (int workers : {0, 1, 2}) {
    DOCTEST_CAPTURE(workers);
    TestTrainer trainer({.backend = "torch", .num_workers = workers, .resources_per_worker = {{"CPU", 1}}});
    const auto plain = weights_of(trainer->run(troupe::fn<train_steps>, {.config = {{"plain", true}}}));
    DOCTEST_CHECK(plain[0][1] == 12);
    DOCTEST_CHECK(weights_of(trainer->run(troupe::fn<train_steps>)) == plain);
    DOCTEST_CHECK(weights_of(trainer->run(troupe::fn<train_steps>, {.config = {{"by_hand", true}}})) == plain);
    const auto first = trainer->run(troupe::fn<train_steps>, {.config = {{"stop_at", 7}}});
    const auto checkpoint = trainer->latest_checkpoint();
    DOCTEST_REQUIRE(checkpoint);
    const auto second = trainer->run(troupe::fn<train_steps>, {.checkpoint = checkpoint});
    DOCTEST_CHECK(second[0]["first"] == 7);
    DOCTEST_CHECK(weights_of(second) == plain);
  }
}

DOCTEST_TEST_CASE("a checkpoint has the own values of every worker, and gives them back to as many workers") {
  on_both_placements([](troupe::Placement placement) {
    std::optional<troupe::Checkpoint> checkpoint;
    std::vector<Json> saved;
    {
      TestTrainer trainer(
          {.backend = "torch", .num_workers = 3, .resources_per_worker = {{"CPU", 1}}, .placement = placement});
      saved = trainer->run(troupe::fn<train_steps>, {.config = {{"stop_at", 5}}});
      checkpoint = trainer->latest_checkpoint()->to_dict();
      // Nothing is left to do: what comes back is what was saved.
      const auto same = trainer->run(troupe::fn<train_steps>, {.config = {{"stop_at", 5}}, .checkpoint = checkpoint});
      for (std::size_t rank = 0; rank < 3; ++rank) {
        DOCTEST_CHECK(same[rank]["own"] == 5 * (rank + 1));
        DOCTEST_CHECK(same[rank]["own_inputs"] == saved[rank]["own_inputs"]);
      }
    }
    TestTrainer fewer(
        {.backend = "torch", .num_workers = 2, .resources_per_worker = {{"CPU", 1}}, .placement = placement});
    const auto rest = fewer->run(troupe::fn<train_steps>, {.config = {{"stop_at", 6}}, .checkpoint = checkpoint});
    DOCTEST_CHECK(rest[0]["weights"] == rest[1]["weights"]);
    DOCTEST_CHECK(rest[0]["own"] == 1);
    DOCTEST_CHECK(rest[1]["own"] == 2);
  });
}

DOCTEST_TEST_CASE("own values that change behind backward() are warned of once") {
  check_warned_once("rank 1 makes changes to its own values", [] {
    torch::nn::Linear net(2, 1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    net = tt::prepare_model(net);
    int own = 0;
    train::Recoverable state({.model = net, .optimizer = optimizer, .own_values = {{"own_count", own}}});
    for (auto step : state.steps(3))
      step.run([&] {
        net->forward(torch::ones({1, 2})).sum().backward();
        if (train::world_rank() == 1) own += 1;
      });
  });
}

DOCTEST_TEST_CASE("buffers that workers do not share are warned of") {
  check_warned_once("a prepared model has buffers, and broadcast_buffers = false", [] {
    torch::nn::BatchNorm1d net(2);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    net = tt::prepare_model(net, {.broadcast_buffers = false});
    train::Recoverable state({.model = net, .optimizer = optimizer});
    for (auto step : state.steps(3)) step.run([&] { net->forward(torch::rand({4, 2})).sum().backward(); });
  });
}

DOCTEST_TEST_CASE("a model gets a new reducer with a new group, also when a backward was cut off") {
  for (bool shared_memory : {true, false}) {
    const auto results = run_on(2, shared_memory, []() -> Json {
      auto& rank = troupe::detail::Session::require("test")->data();
      auto& models = troupe::PreparedModels::instance();
      const auto collective = troupe::TorchGroup::current("test")->collective();
      torch::nn::Linear net(4, 2);
      fill(*net);
      net = tt::prepare_model(net, {.bucket_bytes = 16});
      const auto gradient = [&] {
        net->zero_grad();
        (net->forward(waves({3, 4}, train::world_rank()))).pow(2).sum().backward();
        return gradients_of(*net);
      };
      const auto wanted = gradient();
      auto output = net->forward(waves({3, 4}, 0));
      output.register_hook([](const at::Tensor&) { throw troupe::GroupLost("cut off"); });
      bool lost = false;
      try {
        (output.sum() + net->bias.sum()).backward();
      } catch (const troupe::GroupLost&) {
        lost = true;
      }
      models.detach(rank);
      const bool dropped = !net->weight.grad().defined();
      (net->forward(waves({3, 4}, train::world_rank()))).sum().backward();  // nobody to average with
      models.attach(rank, collective);
      return {lost, dropped, gradient() == wanted, models.descriptions(rank).size()};
    });
    for (const auto& result : results) DOCTEST_CHECK(result == Json{true, true, true, 1});
  }
}

DOCTEST_TEST_CASE("models that share a trained parameter and were prepared alone are refused when others come") {
  const auto results = run_on(2, true, []() -> Json {
    auto& rank = troupe::detail::Session::require("test")->data();
    auto& models = troupe::PreparedModels::instance();
    torch::nn::Linear shared(2, 2);
    torch::nn::Sequential one(shared);
    torch::nn::Sequential other(shared);
    models.add(rank, one.ptr(), {}, nullptr);
    models.add(rank, other.ptr(), {}, nullptr);
    return error_of([&] { models.attach(rank, troupe::TorchGroup::current("test")->collective()); }).text;
  });
  for (const auto& text : results)
    DOCTEST_CHECK(text.get<std::string>().find("parameter 0.weight is trained by another model") == 0);
}

DOCTEST_TEST_CASE("a loader that counts steps begins epochs by itself, and is dealt out anew in the middle of one") {
  const auto results = run_on(2, true, []() -> Json {
    const auto numbers = torch::arange(20);
    auto loader = tt::prepare_data_loader({numbers, numbers}, {.batch_size = 2, .shuffle = true});
    Values taken;
    const auto take = [&] {
      for (const auto value : values_of(loader.next().data)) taken.push_back(value);
    };
    for (int i = 0; i < 3; ++i) take();
    const auto before = loader.state();
    take();
    loader.core().go_on_at(before);  // that one did not count
    taken.resize(taken.size() - 2);
    loader.core().reshard(8);
    take();
    const auto batch = loader.next().data.size(0);
    for (const auto value : values_of(loader.next().data)) taken.push_back(value + 100);
    return {{"taken", taken}, {"batch", batch}, {"epoch", loader.epoch()}, {"global", loader.core().global_batch()}};
  });
  std::multiset<double> first_epoch;
  for (const auto& result : results) {
    DOCTEST_CHECK(result["epoch"] == 1);
    DOCTEST_CHECK(result["batch"] == 4);
    DOCTEST_CHECK(result["global"] == 8);
    for (const auto value : result["taken"].get<Values>())
      if (value < 100) first_epoch.insert(value);
  }
  DOCTEST_CHECK(first_epoch.size() == 20);
  DOCTEST_CHECK(std::set<double>(first_epoch.begin(), first_epoch.end()).size() == 20);
}

DOCTEST_TEST_CASE("a Recoverable refuses what it cannot keep") {
  TestTrainer trainer({.backend = "torch", .num_workers = 0});
  const auto refused = [&](auto function) {
    const auto error = error_of([&] { trainer->run(function); });
    return error.text;
  };
  const auto says = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  DOCTEST_CHECK(says(refused([] {
                       torch::nn::Linear net(1, 1);
                       torch::optim::LBFGS optimizer(net->parameters());
                       train::Recoverable state({.model = net, .optimizer = optimizer});
                     }),
                     "SGD, Adam, AdamW"));
  DOCTEST_CHECK(says(refused([] {
                       double loss = 0;
                       train::Recoverable state({.values = {{"loss", loss}, {"loss", loss}}});
                     }),
                     "has \"loss\" already"));
  DOCTEST_CHECK(says(refused([] {
                       double step = 0;
                       train::Recoverable state({.values = {{"step", step}}});
                     }),
                     "keeps \"step\" itself"));
  DOCTEST_CHECK(says(refused([] {
                       double loss = 0;
                       train::Recoverable state({.values = {{"loss", loss}}, .own_values = {{"loss", loss}}});
                     }),
                     "has \"loss\" already"));
  DOCTEST_CHECK(says(refused([] {
                       at::Tensor nothing;
                       train::Recoverable state({.own_values = {{"nothing", nothing}}});
                     }),
                     "empty tensor"));
  DOCTEST_CHECK(says(refused([] {
                       train::Recoverable state;
                       for (auto step : state.epochs(1)) step.run([] {});
                     }),
                     "give it .loader"));
  DOCTEST_CHECK(says(refused([] { train::Recoverable().commit(); }), "belongs into its loop"));
  DOCTEST_CHECK(says(refused([] { train::Recoverable().load({{"step", -1}}); }), "\"step\" is -1"));
  DOCTEST_CHECK(says(refused([] { train::Recoverable().load({{"epoch", 1}}); }), "step"));
  DOCTEST_CHECK(says(refused([] {
                       train::Recoverable state;
                       for (auto step : state.steps(1)) step.run([] { throw troupe::GroupLost("gone"); });
                     }),
                     "nobody to form a new one"));
}
