// SPDX-License-Identifier: Apache-2.0
// What callbacks and iterators see of a run whose function is run again.
#include <unistd.h>

#include <csignal>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

namespace fs = std::filesystem;

/// Ten rounds, a checkpoint after each third. In the first attempts rank 1 dies once the driver has seen round 5, or 8.
int train_ten(const Config& config) {
  const fs::path folder = config["folder"].get<std::string>();
  int epoch = 0;
  if (auto checkpoint = train::load_checkpoint()) epoch = checkpoint->at<int>("epoch") + 1;
  for (; epoch < 10; ++epoch) {
    train::report({{"epoch", epoch}});
    if (epoch % 3 == 2) {
      train::save_checkpoint({{"epoch", epoch}}, {.sharded = true});  // so that no rank is ahead of the other
      train::flush_checkpoints();
    }
    const bool dies = train::world_rank() == 1 && (epoch == 4 || epoch == 7);
    if (dies && is_first(folder, "died_at_" + std::to_string(epoch))) {
      wait_for_fifo(folder / "seen");
      ::raise(SIGKILL);
    }
  }
  return epoch;
}

std::vector<int> first_ten() { return {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; }

}  // namespace

DOCTEST_TEST_CASE("rounds that callbacks have seen are not shown again after a restart from a checkpoint") {
  TestTrainer trainer({.num_workers = 2});
  const Fifo seen(trainer.folder() / "seen");
  auto logger = std::make_shared<JsonLoggerCallback>();
  auto recorder = std::make_shared<Recorder>();
  auto killer = std::make_shared<FunctionCallback>();
  killer->on_result = [&](const auto&, const ResultInfo& info) {
    if (info.round == 5 || info.round == 8) write_fifo(seen.path(), "x");
  };
  trainer->run(fn<train_ten>, {.config = {{"folder", trainer.folder()}}, .callbacks = {logger, recorder, killer}});
  std::vector<int> epochs;
  std::vector<std::int64_t> rounds;
  for (const auto& round : recorder->rounds) epochs.push_back(round.at(0)["epoch"].get<int>());
  for (const auto& info : recorder->infos) rounds.push_back(info.round);
  DOCTEST_CHECK(epochs == first_ten());
  DOCTEST_CHECK(rounds == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  DOCTEST_CHECK(recorder->infos.at(4).attempt == 1);
  DOCTEST_CHECK(recorder->infos.at(5).attempt == 2);
  DOCTEST_CHECK(recorder->infos.at(9).attempt == 3);
  const auto log = Json::parse(read_file(trainer->latest_run_dir() / "results.json"));
  DOCTEST_REQUIRE(log.size() == 10);
  for (std::size_t i = 0; i < 10; ++i) DOCTEST_CHECK(log[i][0]["_training_iteration"] == i + 1);
}

DOCTEST_TEST_CASE("rounds that an iterator has given are not given again after a restart from a checkpoint") {
  TestTrainer trainer({.num_workers = 2});
  const Fifo seen(trainer.folder() / "seen");
  std::vector<int> epochs;
  for (auto& round : trainer->run_iterator(fn<train_ten>, {.config = {{"folder", trainer.folder()}}})) {
    epochs.push_back(round.at(1)["epoch"].get<int>());
    if (epochs.size() == 5 || epochs.size() == 8) write_fifo(seen.path(), "x");
  }
  DOCTEST_CHECK(epochs == first_ten());
}

DOCTEST_TEST_CASE("a function without checkpoints begins at round 1 again and the attempt tells") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement, .retry_user_errors = true});
    auto recorder = std::make_shared<Recorder>();
    trainer->run(
        [](const Config& config) {
          for (int i = 0; i < 3; ++i) train::report({{"i", i}});
          const fs::path folder = config["folder"].get<std::string>();
          if (train::world_rank() == 0 && is_first(folder, "threw")) throw std::runtime_error("flaky");
        },
        {.config = {{"folder", trainer.folder()}}, .callbacks = {recorder}});
    std::vector<std::pair<int, std::int64_t>> seen;
    for (const auto& info : recorder->infos)
      if (info.attempt == 2) seen.emplace_back(info.attempt, info.round);
    DOCTEST_CHECK(seen == std::vector<std::pair<int, std::int64_t>>{{2, 1}, {2, 2}, {2, 3}});
  });
}

DOCTEST_TEST_CASE("local mode shows no round twice either") {
  TestTrainer trainer({.num_workers = 0, .retry_user_errors = true});
  auto recorder = std::make_shared<Recorder>();
  trainer->run(
      [](const Config& config) {
        int epoch = 0;
        if (auto checkpoint = train::load_checkpoint()) epoch = checkpoint->at<int>("epoch") + 1;
        for (; epoch < 6; ++epoch) {
          train::report({{"epoch", epoch}});
          if (epoch == 1) train::save_checkpoint({{"epoch", epoch}});
          if (epoch == 3 && is_first(config["folder"].get<std::string>(), "threw")) throw std::runtime_error("flaky");
        }
      },
      {.config = {{"folder", trainer.folder()}}, .callbacks = {recorder}});
  std::vector<std::int64_t> rounds;
  for (const auto& info : recorder->infos) rounds.push_back(info.round);
  DOCTEST_CHECK(rounds == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6});
}

DOCTEST_TEST_CASE("a function that always ends at the same round ends the run for want of progress") {
  TestTrainer trainer({.num_workers = 1, .max_retries = -1, .retry_user_errors = true});
  const auto error = error_of([&] {
    trainer->run(
        [](const Config& config) {
          int epoch = 0;
          if (auto checkpoint = train::load_checkpoint()) epoch = checkpoint->at<int>("epoch") + 1;
          for (; epoch < 4; ++epoch) {
            train::report({{"epoch", epoch}});
            if (epoch == 1) train::save_checkpoint({{"epoch", epoch}});
          }
          int attempt = 1;
          while (!is_first(config["folder"].get<std::string>(), "attempt_" + std::to_string(attempt))) ++attempt;
          throw std::runtime_error("another text each time: " + std::to_string(attempt));
        },
        {.config = {{"folder", trainer.folder()}}});
  });
  DOCTEST_CHECK(error.code == ErrorCode::user_code);
  DOCTEST_CHECK_MESSAGE(error.says("each time: 4"), error.text);
  DOCTEST_CHECK_MESSAGE(error.says("no progress in 3 restarts"), error.text);
  const auto story = Json::parse(read_file(trainer->latest_run_dir() / "run.json"));
  DOCTEST_REQUIRE(story["decisions"].size() == 4);
  DOCTEST_CHECK(story["decisions"][3]["decision"].get<std::string>().starts_with("end: no progress"));
}

}  // namespace troupe::test
