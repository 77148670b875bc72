// SPDX-License-Identifier: Apache-2.0
// Functions that return checkpoints: small ones come in a message, large ones as folders, or as memory.
#include <signal.h>

#include <fstream>

#include "test/integration/support.hpp"

using namespace troupe;
using namespace troupe::test;
namespace fs = std::filesystem;

namespace {

/// Of `count` floats and this rank.
Checkpoint state_of(int rank, int count) {
  return {{"rank", rank},
          {"model",
           {{"weights",
             TensorData::of(std::vector<float>(static_cast<std::size_t>(count), 1.5F + static_cast<float>(rank)))}}}};
}

Checkpoint give_small() { return state_of(train::world_rank(), 10); }

constexpr int many = 200'000;  // floats: too much for a message
Checkpoint give_large() { return state_of(train::world_rank(), many); }

Checkpoint large_on_rank_1() { return train::world_rank() == 1 ? give_large() : give_small(); }

}  // namespace

DOCTEST_TEST_CASE("a function may return a checkpoint, small on one rank and large on another") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 3, .placement = placement});
    const auto results = trainer->run(fn<large_on_rank_1>);
    DOCTEST_REQUIRE(results.size() == 3);
    DOCTEST_CHECK(results.checkpoint() == state_of(0, 10));
    DOCTEST_CHECK((results.checkpoint(1) == state_of(1, many)));
    DOCTEST_CHECK(results.checkpoint(2) == state_of(2, 10));

    const auto folder = trainer->latest_run_dir() / "results" / "rank_1";
    DOCTEST_CHECK(results[0] == nullptr);
    DOCTEST_CHECK(results[1] == folder.string());
    DOCTEST_CHECK((Checkpoint::from_path(folder) == state_of(1, many)));
    DOCTEST_CHECK(!fs::exists(folder.parent_path() / "rank_0"));
    DOCTEST_CHECK(trainer->latest_checkpoint() == std::nullopt);  // what is returned is not what is saved

    const std::vector<Json> as_list = trainer->run([]() -> Json { return train::world_rank(); });
    DOCTEST_CHECK(as_list == std::vector<Json>{0, 1, 2});
  });
}

DOCTEST_TEST_CASE("with num_to_keep 0 a large returned checkpoint stays in memory") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const RunOptions options{.checkpoint_strategy = {.num_to_keep = 0}};
    const auto results = trainer->run(fn<give_large>, options);
    trainer->run([] {}, options);  // the ranks let go of it
    trainer->shutdown();
    DOCTEST_CHECK(results[1] == nullptr);
    DOCTEST_CHECK((results.checkpoint(0) == state_of(0, many)));
    DOCTEST_CHECK((results.checkpoint(1) == state_of(1, many)));
    DOCTEST_CHECK(!fs::exists(trainer->logdir() / "run_001" / "results"));
  });
}

DOCTEST_TEST_CASE("iterators and local mode hand returned checkpoints back too") {
  for (int workers : {0, 2}) {
    DOCTEST_CAPTURE(workers);
    TestTrainer trainer({.num_workers = workers, .placement = Placement::thread});
    for (const auto& keep : {std::optional<int>(), std::optional<int>(0)}) {
      DOCTEST_CAPTURE(keep.has_value());
      auto rounds = trainer->run_iterator(
          []() -> Checkpoint {
            train::report({{"loss", 1}});
            return give_large();
          },
          {.checkpoint_strategy = {.num_to_keep = keep}});
      for (auto& round : rounds) DOCTEST_CHECK(round.size() == static_cast<std::size_t>(std::max(workers, 1)));
      DOCTEST_CHECK((rounds.get_final_results()->checkpoint() == state_of(0, many)));
      DOCTEST_CHECK((rounds.get_returns().checkpoint() == state_of(0, many)));
    }
    DOCTEST_CHECK(trainer->run(fn<give_small>).checkpoint() == state_of(0, 10));
  }
}

DOCTEST_TEST_CASE("a folder of files can be returned") {
  TempFolder folder;
  std::ofstream(folder.path() / "words.txt") << "seven words";
  TestTrainer trainer({.num_workers = 1});
  const auto function = [](const Config& config) {
    return Checkpoint::from_directory(config["folder"].get<std::string>());
  };
  const auto results = trainer->run(function, {.config = {{"folder", folder.path()}}});
  fs::remove(folder.path() / "words.txt");
  DOCTEST_REQUIRE(results.checkpoint().has_files());
  std::string text;
  std::getline(std::ifstream(results.checkpoint().as_directory().path() / "words.txt"), text);
  DOCTEST_CHECK(text == "seven words");

  const auto error = error_of([&] {
    trainer->run(function, {.config = {{"folder", folder.path()}}, .checkpoint_strategy = {.num_to_keep = 0}});
  });
  DOCTEST_CHECK(error.says("num_to_keep is 0"));
}

DOCTEST_TEST_CASE("what an attempt returned that failed is not there afterwards") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 1});
  const auto function = [](const Config& config) -> Checkpoint {
    if (train::world_rank() == 1 && is_first(config["folder"].get<std::string>(), "attempt")) {
      const fs::path returned = config["run"].get<std::string>() + "/results/rank_0/manifest.json";
      while (!fs::exists(returned)) train::wait_for_stop(std::chrono::milliseconds(1));
      ::raise(SIGKILL);
    }
    return give_large();
  };
  const auto results =
      trainer->run(function, {.config = {{"folder", trainer.folder()}, {"run", trainer->logdir() / "run_001"}}});
  DOCTEST_CHECK((results.checkpoint(0) == state_of(0, many)));
  DOCTEST_CHECK((results.checkpoint(1) == state_of(1, many)));
  DOCTEST_CHECK(results[0] == (trainer->latest_run_dir() / "results_2" / "rank_0").string());
  DOCTEST_CHECK(!fs::exists(trainer->latest_run_dir() / "results"));
}

DOCTEST_TEST_CASE("a result that is no checkpoint, or one whose file is damaged, is told when it is asked for") {
  TestTrainer trainer({.num_workers = 2});
  const auto numbers = trainer->run([] { return 7; });
  DOCTEST_CHECK(error_of([&] { numbers.checkpoint(1); }).says("rank 1 returned no checkpoint"));
  DOCTEST_CHECK(error_of([&] { numbers.checkpoint(2); }).says("there is no rank 2 among 2"));
  DOCTEST_CHECK(error_of([&] { numbers.checkpoint(-1); }).code == ErrorCode::invalid_argument);
  DOCTEST_CHECK(error_of([] { RunResults().checkpoint(); }).says("among 0"));

  const auto hook = error_of([&] {
    trainer->shutdown();
    trainer->start(fn<give_small>);
  });
  DOCTEST_CHECK(hook.says("outside a run"));

  // Bytes that look like the place of a checkpoint but are not, and a place where there is none.
  const auto looks_like = RunResults(std::vector<Json>{Json::binary({1, 2, 3}, 0x54), Json::binary({0x80}, 0x54)});
  DOCTEST_CHECK(error_of([&] { looks_like.checkpoint(0); }).says("returned no checkpoint"));
  DOCTEST_CHECK(error_of([&] { looks_like.checkpoint(1); }).says("returned no checkpoint"));
  const Json gone = {{"bytes", Json::binary({})}, {"folder", "/nowhere/rank_0"}, {"files", Json::array()}};
  const auto lost =
      error_of([&] { RunResults(std::vector<Json>{Json::binary(Json::to_msgpack(gone), 0x54)}).checkpoint(); });
  DOCTEST_CHECK(lost.code == ErrorCode::io);
  DOCTEST_CHECK(lost.says("what rank 0 returned cannot be opened"));
}
