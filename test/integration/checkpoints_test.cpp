// SPDX-License-Identifier: Apache-2.0
// save_checkpoint() and load_checkpoint() in workers, and what the driver has of them.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "test/integration/support.hpp"

using namespace troupe;
using namespace troupe::test;
namespace fs = std::filesystem;

namespace {

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

void save_five() {
  int epoch = 0;
  int model = 0;
  if (auto checkpoint = train::load_checkpoint()) {
    epoch = checkpoint->at<int>("epoch") + 1;
    model = checkpoint->at<int>("model");
  }
  for (; epoch < 5; ++epoch) train::save_checkpoint({{"epoch", epoch}, {"model", model += epoch}});
}

/// A state that does not fit into a message, and differs between ranks.
Checkpoint large_state(int rank, int epoch) {
  return {{"epoch", epoch},
          {"weights", TensorData::of(std::vector<float>(200'000, static_cast<float>(100 * rank + epoch)))}};
}

bool is_large_state(const std::optional<Checkpoint>& checkpoint, int rank, int epoch) {
  if (!checkpoint || checkpoint->at<int>("epoch") != epoch) return false;
  const auto weights = checkpoint->at<TensorData>("weights");
  for (float value : weights.values<float>())
    if (value != static_cast<float>(100 * rank + epoch)) return false;
  return weights.numel() == 200'000;
}

int id_of(const std::optional<Checkpoint>& checkpoint) { return checkpoint->at<int>("_current_checkpoint_id"); }

}  // namespace

DOCTEST_TEST_CASE("the driver has the latest checkpoint and finds all of them on disk") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    DOCTEST_CHECK(trainer->latest_checkpoint() == std::nullopt);
    DOCTEST_CHECK(trainer->latest_checkpoint_dir().empty());
    trainer->run(fn<save_five>);
    const auto latest = trainer->latest_checkpoint();
    DOCTEST_REQUIRE(latest.has_value());
    DOCTEST_CHECK(latest->at<int>("epoch") == 4);
    DOCTEST_CHECK(latest->at<int>("model") == 10);
    DOCTEST_CHECK(latest->contains("_timestamp"));
    DOCTEST_CHECK(id_of(latest) == 5);
    DOCTEST_CHECK(trainer->latest_checkpoint_dir() == trainer->latest_run_dir() / "checkpoints");
    DOCTEST_CHECK(names_in(trainer->latest_checkpoint_dir()) ==
                  std::set<std::string>{"checkpoint_000001", "checkpoint_000002", "checkpoint_000003",
                                        "checkpoint_000004", "checkpoint_000005"});
    DOCTEST_CHECK(trainer->best_checkpoint_path() == trainer->latest_checkpoint_path());
    trainer->shutdown();
    DOCTEST_CHECK(Checkpoint::from_path(trainer->best_checkpoint_path()) == *latest);
    DOCTEST_CHECK(trainer->get_last_checkpoint() == latest);
  });
}

DOCTEST_TEST_CASE("a run starts from the checkpoint it is given and never from the run before") {
  TestTrainer trainer({.num_workers = 2});
  trainer->run(fn<save_five>, {.checkpoint = {{"epoch", 2}, {"model", 3}}});
  DOCTEST_CHECK(trainer->latest_checkpoint()->at<int>("model") == 10);
  DOCTEST_CHECK(id_of(trainer->latest_checkpoint()) == 2);
  const auto first_best = trainer->best_checkpoint_path();
  const auto loads = [] {
    auto checkpoint = train::load_checkpoint();
    return checkpoint ? checkpoint->at<int>("epoch") : -1;
  };
  DOCTEST_CHECK(Json(trainer->run(loads)) == Json{-1, -1});
  DOCTEST_CHECK(trainer->latest_checkpoint() == std::nullopt);
  DOCTEST_CHECK(trainer->best_checkpoint_path().empty());
  DOCTEST_CHECK(Json(trainer->run(loads, {.checkpoint = Checkpoint::from_path(first_best)})) == Json{4, 4});
  DOCTEST_CHECK(Json(trainer->run(loads, {.checkpoint = Json{{"epoch", 7}}})) == Json{7, 7});
  DOCTEST_CHECK(trainer->latest_checkpoint()->at<int>("epoch") == 7);
  DOCTEST_CHECK(error_of([&] { Checkpoint::from_path("/no/such/folder"); }).says("/no/such/folder"));
}

DOCTEST_TEST_CASE("a checkpoint that fits into no message comes and goes as files") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto results = trainer->run([] {
      for (int epoch = 0; epoch < 3; ++epoch) train::save_checkpoint(large_state(0, epoch));
      return is_large_state(train::load_checkpoint(), 0, 2);
    });
    DOCTEST_CHECK(Json(results) == Json{true, true});
    DOCTEST_CHECK(is_large_state(trainer->latest_checkpoint(), 0, 2));
    DOCTEST_CHECK(is_large_state(Checkpoint::from_path(trainer->latest_checkpoint_dir() / "checkpoint_000001"), 0, 0));
    const auto loaded = trainer->run([] { return is_large_state(train::load_checkpoint(), 0, 2); },
                                     {.checkpoint = trainer->latest_checkpoint()});
    DOCTEST_CHECK(Json(loaded) == Json{true, true});
  });
}

DOCTEST_TEST_CASE("with nothing to keep no file is written and the latest is in memory") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto results = trainer->run(
        [] {
          for (int epoch = 0; epoch < 3; ++epoch) train::save_checkpoint(large_state(0, epoch));
          return is_large_state(train::load_checkpoint(), 0, 2);
        },
        {.checkpoint_strategy = {.num_to_keep = 0}});
    DOCTEST_CHECK(Json(results) == Json{true, true});
    DOCTEST_CHECK(is_large_state(trainer->latest_checkpoint(), 0, 2));
    DOCTEST_CHECK(trainer->best_checkpoint_path().empty());
    DOCTEST_CHECK(trainer->latest_checkpoint_path().empty());
    DOCTEST_CHECK(!fs::exists(trainer->latest_checkpoint_dir()));
    trainer->shutdown();
    DOCTEST_CHECK(is_large_state(trainer->latest_checkpoint(), 0, 2));
  });
}

DOCTEST_TEST_CASE("after a lost worker the function goes on from the latest checkpoint") {
  for (int to_keep : {0, 1}) {
    TestTrainer trainer({.num_workers = 2});
    auto recorder = std::make_shared<Recorder>();
    const auto results = trainer->run(
        [] {
          int epoch = 0;
          if (auto checkpoint = train::load_checkpoint()) epoch = checkpoint->at<int>("epoch") + 1;
          const int first = epoch;
          for (; epoch < 4; ++epoch) {
            if (epoch == 2 && first == 0) {
              train::flush_checkpoints();
              if (train::world_rank() == 1) ::kill(::getpid(), SIGKILL);
              train::wait_for_stop();
            }
            train::report({{"epoch", epoch}}, large_state(0, epoch));
          }
          return first;
        },
        {.callbacks = {recorder}, .checkpoint_strategy = {.num_to_keep = to_keep}});
    DOCTEST_CHECK(Json(results) == Json{2, 2});
    DOCTEST_CHECK(is_large_state(trainer->latest_checkpoint(), 0, 3));
    DOCTEST_CHECK(id_of(trainer->latest_checkpoint()) == 4);
    // The function's own count goes on too.
    DOCTEST_CHECK(recorder->rounds.back()[0]["_training_iteration"] == 4);
  }
}

DOCTEST_TEST_CASE("a sharded checkpoint keeps every rank's part") {
  TestTrainer trainer({.num_workers = 3});
  trainer->run([] { train::save_checkpoint(large_state(train::world_rank(), 1), {.sharded = true}); });
  const auto again = trainer->run(
      [] {
        const auto checkpoint = train::load_checkpoint();
        return is_large_state(checkpoint, train::world_rank(), 1);
      },
      {.checkpoint = trainer->latest_checkpoint()});
  DOCTEST_CHECK(Json(again) == Json{true, true, true});
}

DOCTEST_TEST_CASE("a score that is missing ends the run and keeps the checkpoint") {
  TestTrainer trainer({.num_workers = 2});
  const auto error = error_of([&] {
    trainer->run(
        [] {
          train::save_checkpoint({{"epoch", 1}});
          for (;;) train::report({{"round", 1}});
        },
        {.checkpoint_strategy = {.num_to_keep = 1, .checkpoint_score_attribute = "loss"}});
  });
  DOCTEST_CHECK(error.code == ErrorCode::invalid_option);
  DOCTEST_CHECK(error.says("\"loss\""));
  DOCTEST_CHECK(trainer->latest_checkpoint()->at<int>("epoch") == 1);
}

DOCTEST_TEST_CASE("a bad checkpoint strategy is refused before anything runs") {
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  const auto error = error_of([&] { trainer->run([] {}, {.checkpoint_strategy = {.num_to_keep = -3}}); });
  DOCTEST_CHECK(error.code == ErrorCode::invalid_option);
}

DOCTEST_TEST_CASE("a save that cannot be written is told and training goes on") {
  TestTrainer trainer({.num_workers = 2});
  const auto train_func = [](const Config& config) {
    train::save_checkpoint({{"epoch", 0}});
    train::flush_checkpoints();
    // Where checkpoints go there is a file now.
    if (train::world_rank() == 0) {
      const auto folder = fs::path(config["logdir"].get<std::string>()) / "run_001" / "checkpoints";
      fs::rename(folder, folder.string() + ".aside");
      std::ofstream(folder) << "in the way";
    }
    train::save_checkpoint({{"epoch", 1}});
    train::flush_checkpoints();
    return train::load_checkpoint()->at<int>("epoch");
  };
  const auto results = trainer->run(train_func, {.config = {{"logdir", trainer->logdir().string()}}});
  DOCTEST_CHECK(results[0] == 0);
  DOCTEST_REQUIRE(trainer->checkpoint_errors().size() == 1);
  std::ifstream file(trainer->latest_run_dir() / "run.json");
  const auto run = Json::parse(file);
  DOCTEST_CHECK(run["checkpoints"]["committed"] == 1);
  DOCTEST_CHECK(run["checkpoints"]["errors"].size() == 1);
}

DOCTEST_TEST_CASE("a run that died with its program is restored in its folder") {
  TempFolder folder;
  const auto count = [](const Config& config) {
    int epoch = 0;
    if (auto checkpoint = train::load_checkpoint()) epoch = checkpoint->at<int>("epoch") + 1;
    for (; epoch < config["num_epochs"]; ++epoch) train::report({{"epoch", epoch}}, {{"epoch", epoch}});
  };
  fs::path run_dir;
  {
    Trainer trainer({.num_workers = 2, .logdir = folder.path() / "results"});
    trainer.run(count, {.config = {{"num_epochs", 2}}});
    run_dir = trainer.latest_run_dir();
  }
  auto trainer = Trainer::restore(run_dir);
  DOCTEST_CHECK(trainer.num_workers() == 2);
  auto recorder = std::make_shared<Recorder>();
  trainer.run(count, {.config = {{"num_epochs", 4}}, .callbacks = {recorder}});
  DOCTEST_CHECK(trainer.latest_run_dir() == run_dir);
  DOCTEST_CHECK(id_of(trainer.latest_checkpoint()) == 4);
  DOCTEST_REQUIRE(recorder->rounds.size() == 2);
  DOCTEST_CHECK(recorder->rounds[0][0]["_training_iteration"] == 3);

  Trainer by_option({.num_workers = 1, .logdir = folder.path() / "results"});
  by_option.run(count, {.config = {{"num_epochs", 5}}, .resume = true});
  DOCTEST_CHECK(by_option.latest_run_dir() == run_dir);
  DOCTEST_CHECK(id_of(by_option.latest_checkpoint()) == 5);
  DOCTEST_CHECK(error_of([&] { Trainer::restore(folder.path()); }).says("run.json"));
}

DOCTEST_TEST_CASE("checkpoints work in local mode") {
  TestTrainer trainer({.num_workers = 0});
  const auto results = trainer->run([] {
    for (int epoch = 0; epoch < 3; ++epoch) train::save_checkpoint(large_state(0, epoch));
    return is_large_state(train::load_checkpoint(), 0, 2);
  });
  DOCTEST_CHECK(results[0] == true);
  DOCTEST_CHECK(is_large_state(trainer->latest_checkpoint(), 0, 2));
}

DOCTEST_TEST_CASE("outside a run checkpoints are refused with a hint") {
  DOCTEST_CHECK(error_of([] { train::save_checkpoint({{"epoch", 1}}); }).code == ErrorCode::not_in_worker);
  DOCTEST_CHECK(error_of([] { train::load_checkpoint(); }).code == ErrorCode::not_in_worker);
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  trainer->start();
  const auto error = error_of([&] { trainer->execute_single([] { train::save_checkpoint({{"epoch", 1}}); }); });
  DOCTEST_CHECK(error.says("outside a run"));
}

DOCTEST_TEST_CASE("braces of all shapes arrive in the driver as they were written") {
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  trainer->run([] {
    train::save_checkpoint({{"name", "resnet"}});
    train::report({{"name", "resnet"}},
                  {{"name", "resnet"}, {"layers", {"conv", "linear"}}, {"nested", {{"a", {{"b", 1}}}}}});
  });
  const auto latest = *trainer->latest_checkpoint();
  DOCTEST_CHECK(latest.at<std::string>("name") == "resnet");
  DOCTEST_CHECK(latest.at<std::vector<std::string>>("layers") == std::vector<std::string>{"conv", "linear"});
  DOCTEST_CHECK(latest.at<Checkpoint>("nested").at<Checkpoint>("a").at<int>("b") == 1);
}
