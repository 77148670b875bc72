// SPDX-License-Identifier: Apache-2.0
// Corners of going on in place: optimizers that leave no trace, tensors without elements, one worker, two run()s a
// step, workers that are behind more than once.
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include <troupe/torch.hpp>
#include <troupe/torch_c10d.hpp>
#include <troupe/troupe.hpp>

#include "test/torch/model_support.hpp"

namespace train = troupe::train;
namespace tt = troupe::train::torch;
using namespace troupe::test;
using troupe::Json;

namespace {

/// The config's "faults" are {rank, step, what}, each once; rank -1 is every rank.
bool is_due(const troupe::Config& config, const std::string& what, std::int64_t step) {
  const auto& faults = config["faults"];
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const auto& fault = faults[i];
    if (fault[2] != what || fault[1] != step || (fault[0] != -1 && fault[0] != train::world_rank())) continue;
    const std::filesystem::path folder = config["folder"].get<std::string>();
    // Rounds have come: the driver knows that all ranks can go on in place.
    const auto wait_for = [&](const std::string& name) {
      while (!std::filesystem::exists(folder / name)) std::this_thread::yield();
    };
    wait_for("rounds have come");
    const auto name_of = [&](int rank) { return std::to_string(i) + "_" + std::to_string(rank); };
    if (!is_first(folder, name_of(train::world_rank()))) return false;
    // All together: who is first would end an exchange that another one has not left yet.
    for (int rank = 0; fault[0] == -1 && rank < train::world_size(); ++rank) wait_for(name_of(rank));
    return true;
  }
  return false;
}

/// Six steps of plain SGD on a table of which few rows are used. The config's "variant" is "dense", or what is unusual;
/// "beside a prepared model": averaged by hand and stepped before that one's backward().
Json train_table(const troupe::Config& config) {
  const std::string variant = config["variant"];
  const bool beside = variant == "beside a prepared model";
  const bool by_hand = variant == "averaged by hand" || beside;
  torch::manual_seed(1);
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(1 << 16, 4).sparse(variant == "sparse"));
  auto parameters = table->parameters();
  if (variant == "beside a frozen table") parameters.push_back(torch::ones({1 << 16, 4}));
  // A decay too small to change a float of any row.
  torch::optim::SGD optimizer(parameters,
                              torch::optim::SGDOptions(0.05).weight_decay(variant == "tiny decay" ? 1e-8 : 0));
  if (!by_hand) table = tt::prepare_model(table);
  torch::nn::Linear other(1, 1);
  if (beside) other = tt::prepare_model(other);
  train::Recoverable state({.model = table, .optimizer = optimizer});
  const auto rows = torch::arange(1000, 1010);
  for (auto step : state.steps(6)) {
    step.run([&] {
      if (variant != "zeroed at the end") optimizer.zero_grad();
      if (is_due(config, "throw before backward", step.number())) throw std::runtime_error("bad batch");
      table->forward(rows).square().sum().backward();
      if (by_hand) tt::all_reduce(table->weight.mutable_grad(), tt::Reduce::mean);
      optimizer.step();
      if (variant == "zeroed at the end") optimizer.zero_grad();
      if (is_due(config, "falter behind the step", step.number())) throw troupe::GroupLost("faltered");
      if (beside) other->forward(torch::ones({1, 1})).sum().backward();
    });
    train::report({{"step", step.number()}});
  }
  return values_of(table->weight.index_select(0, rows).flatten());
}

/// Six steps in a loop inside a join().
Json train_in_join(const troupe::Config& config) {
  torch::nn::Linear net(4, 2);
  fill(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  net = tt::prepare_model(net);
  train::Recoverable state({.model = net, .optimizer = optimizer});
  tt::join(net, [&] {
    for (auto step : state.steps(6)) {
      step.run([&] {
        optimizer.zero_grad();
        if (is_due(config, "throw before backward", step.number())) throw std::runtime_error("bad batch");
        net->forward(waves({3, 4}, train::world_rank())).square().sum().backward();
        optimizer.step();
      });
      train::report({{"step", step.number()}});
    }
  });
  return parameters_of(*net);
}

/// Twelve steps of plain SGD with dropout. "c10d": an operation of the c10d group in each step.
Json train_edges(const troupe::Config& config) {
  const auto due = [&](const std::string& what, std::int64_t step) { return is_due(config, what, step); };
  torch::manual_seed(1);
  const auto x = torch::randn({48, 4});
  const auto y = torch::randn({48, 2});
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Dropout(0.3), torch::nn::Linear(8, 2));
  net->register_buffer("nothing", torch::zeros({0}));
  auto seen = net->register_buffer("seen", torch::zeros({1}));
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  net = tt::prepare_model(net);
  auto loader = tt::prepare_data_loader({x, y}, {.batch_size = 4, .shuffle = true});
  torch::manual_seed(static_cast<std::uint64_t>(train::world_rank()));
  train::Recoverable state({.model = net, .optimizer = optimizer, .loader = loader});
  for (auto step : state.steps(12)) {
    const auto number = step.number();
    step.run([&] {
      auto& [inputs, targets] = loader.next();
      if (due("throw behind the batch", number)) throw std::runtime_error("bad batch");
      optimizer.zero_grad();
      torch::mse_loss(net->forward(inputs), targets).backward();
      seen += 1;
      if (due("kill", number)) ::kill(::getpid(), SIGKILL);
      if (config.value("c10d", false)) {
        std::vector<at::Tensor> ones{torch::ones({1})};
        tt::process_group()->allreduce(ones)->wait();
      }
      if (due("falter", number)) throw troupe::GroupLost("faltered");
      optimizer.step();
      if (due("throw behind the step", number)) throw std::runtime_error("too late");
      if (due("falter behind the step", number)) throw troupe::GroupLost("faltered");
    });
    train::report({{"step", number}});
    step.run([&] {
      if (due("kill in the second run", number)) ::kill(::getpid(), SIGKILL);
      tt::barrier();
    });
  }
  return {{"weights", parameters_of(*net)}, {"seen", seen.item<double>()}, {"rest", values_of(torch::rand({2}))}};
}

/// Says that rounds have come.
struct Witness : Recorder {
  explicit Witness(std::filesystem::path where) : folder(std::move(where)) {}
  void handle_result(const std::vector<Json>& results, const troupe::ResultInfo& given) override {
    Recorder::handle_result(results, given);
    std::ofstream(folder / "rounds have come");
  }
  std::filesystem::path folder;
};

struct Outcome {
  std::vector<Json> results;
  std::vector<int> steps;  // as reported
  int attempts = 0;
};

Outcome train_on(TestTrainer& trainer, const troupe::Fn& function, Json config) {
  auto recorder = std::make_shared<Witness>(trainer.folder());
  config["folder"] = trainer.folder().string();
  Outcome outcome;
  outcome.results = trainer->run(function, {.config = std::move(config), .callbacks = {recorder}});
  for (const auto& round : recorder->rounds) outcome.steps.push_back(round[0]["step"]);
  for (const auto& info : recorder->infos)
    outcome.attempts = std::max(outcome.attempts, static_cast<int>(info.attempt));
  return outcome;
}

Outcome train_on(TestTrainer& trainer, const Json& faults = Json::array(), bool c10d = false) {
  return train_on(trainer, troupe::fn<train_edges>, {{"faults", faults}, {"c10d", c10d}});
}

troupe::TrainerOptions options_for(int workers) {
  return {.backend = troupe::TorchConfig{.timeout_s = 30},
          .num_workers = workers,
          .resources_per_worker = {{"CPU", 1}},
          .retry_user_errors = true};
}

Outcome train_table_on(int workers, const char* variant, const Json& faults) {
  TestTrainer trainer(options_for(workers));
  return train_on(trainer, troupe::fn<train_table>, {{"variant", variant}, {"faults", faults}});
}

/// Faults change nothing but the attempts.
void check_faults(int workers, const Json& faults, int attempts) {
  TestTrainer calm(options_for(workers));
  TestTrainer trainer(options_for(workers));
  const auto wanted = train_on(calm);
  const auto outcome = train_on(trainer, faults);
  DOCTEST_CHECK(outcome.results == wanted.results);
  DOCTEST_CHECK(outcome.attempts == attempts);
  if (attempts == 1) DOCTEST_CHECK(outcome.steps == wanted.steps);
}

}  // namespace

DOCTEST_TEST_CASE("plain SGD, which leaves no trace of its step, is not applied twice") {
  check_faults(2, {{-1, 5, "falter behind the step"}}, 2);
}

DOCTEST_TEST_CASE("plain SGD on a few rows of a large table is not applied twice") {
  for (const char* variant :
       {"dense", "sparse", "zeroed at the end", "tiny decay", "averaged by hand", "beside a prepared model"}) {
    DOCTEST_CAPTURE(variant);
    const auto faltered = train_table_on(2, variant, {{-1, 3, "falter behind the step"}});
    DOCTEST_CHECK(faltered.results == train_table_on(2, variant, Json::array()).results);
    DOCTEST_CHECK(faltered.attempts == 2);
  }
}

DOCTEST_TEST_CASE("a step on a large table that throws before backward is made again, in place where that is known") {
  for (int workers : {1, 2})
    for (const char* variant : {"dense", "beside a frozen table", "averaged by hand"}) {
      DOCTEST_CAPTURE(workers);
      DOCTEST_CAPTURE(variant);
      const auto thrown = train_table_on(workers, variant, {{-1, 3, "throw before backward"}});
      DOCTEST_CHECK(thrown.results == train_table_on(workers, variant, Json::array()).results);
      const bool is_known = workers > 1 && std::string(variant) != "averaged by hand";  // no averaging has ended
      DOCTEST_CHECK(thrown.attempts == (is_known ? 1 : 2));
    }
}

DOCTEST_TEST_CASE("a loop inside a join, which ends with its group, is run again from its beginning") {
  TestTrainer calm(options_for(2));
  TestTrainer trainer(options_for(2));
  const auto wanted = train_on(calm, troupe::fn<train_in_join>, {{"faults", Json::array()}});
  const auto faults = Json::array({{-1, 3, "throw before backward"}});
  const auto thrown = train_on(trainer, troupe::fn<train_in_join>, {{"faults", faults}});
  DOCTEST_CHECK(thrown.results == wanted.results);
  DOCTEST_CHECK(thrown.attempts == 2);
}

DOCTEST_TEST_CASE("one worker whose step throws makes it again with the same batch and random numbers") {
  check_faults(1, {{0, 5, "throw behind the batch"}}, 1);
  check_faults(1, {{0, 5, "throw behind the step"}}, 2);
}

DOCTEST_TEST_CASE("a worker lost in the second run() of a step leaves the rounds as they were") {
  check_faults(2, {{1, 4, "kill in the second run"}}, 1);
  check_faults(3, {{0, 4, "kill in the second run"}}, 1);
}

DOCTEST_TEST_CASE("a worker that came later and falls behind once more has its own random numbers") {
  check_faults(2, {{1, 3, "kill"}, {1, 7, "falter"}}, 1);
  check_faults(3, {{1, 3, "kill"}, {1, 7, "falter"}, {2, 9, "kill"}}, 1);
}

DOCTEST_TEST_CASE("an operation of the c10d group that fails for a lost worker is no error of the function") {
  auto options = options_for(2);
  TestTrainer calm(options);
  options.retry_user_errors = false;
  TestTrainer trainer(options);
  const auto outcome = train_on(trainer, {{1, 3, "kill"}, {0, 7, "kill"}}, /*c10d=*/true);
  DOCTEST_CHECK(outcome.results == train_on(calm).results);
  DOCTEST_CHECK(outcome.attempts == 1);
}

DOCTEST_TEST_CASE("a process that trained with others trains alone in the next run") {
  auto options = options_for(2);
  options.num_workers = {1, 2};
  options.retry_user_errors = false;
  TestTrainer trainer(options);
  train_on(trainer);
  trainer->resize(1);
  const auto alone = train_on(trainer);
  DOCTEST_REQUIRE(alone.results.size() == 1);
  TestTrainer other(options_for(1));
  DOCTEST_CHECK(alone.results == train_on(other).results);
}
