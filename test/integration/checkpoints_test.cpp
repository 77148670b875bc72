// SPDX-License-Identifier: Apache-2.0
// save_checkpoint() and load_checkpoint() in workers, and what the driver has of them.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include <fmt/format.h>

#include "checkpoint/journal.hpp"
#include "test/integration/support.hpp"
#include "test/unit/thrown.hpp"

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

/// Saves these losses, then throws if it is told to.
void save_losses(const Config& config) {
  for (const auto& loss : config["losses"]) train::save_checkpoint({{"loss", loss}});
  train::flush();
  if (config.value("throws", false)) throw std::runtime_error("on purpose");
}

/// What a folder of files holds.
std::string text_of(const Checkpoint& checkpoint) {
  const auto directory = checkpoint.as_directory();
  return read_file(directory.path() / "model.txt") + " " + read_file(directory.path() / "deep" / "more.txt");
}

/// Of the shapes that braces have: one entry, a string, a list of two strings, dictionaries in each other.
bool is_shape(const Checkpoint& checkpoint, int shape) {
  switch (shape) {
    case 0:
      return checkpoint.value("epoch", 0) == 1;
    case 1:
      return checkpoint.value("name", std::string()) == "resnet";
    case 2:
      return checkpoint.value("layers", std::vector<std::string>()) == std::vector<std::string>{"conv", "linear"};
    default:
      return checkpoint.contains("nested") && checkpoint.at<Checkpoint>("nested").at<Checkpoint>("a").at<int>("b") == 1;
  }
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

DOCTEST_TEST_CASE("the newest of a run that is not among its best stays until a later run has ended well") {
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  const CheckpointStrategy best{
      .num_to_keep = 1, .checkpoint_score_attribute = "loss", .checkpoint_score_order = "min"};
  trainer->run(fn<save_losses>, {.config = {{"losses", {1, 2}}}, .checkpoint_strategy = best});
  const auto first = trainer->latest_checkpoint_path();
  DOCTEST_CHECK(first == trainer->latest_run_dir() / "latest" / "checkpoint_000002");
  error_of([&] {
    trainer->run(fn<save_losses>, {.config = {{"losses", {1, 2}}, {"throws", true}}, .checkpoint_strategy = best});
  });
  DOCTEST_CHECK(Checkpoint::from_path(first).at<int>("loss") == 2);
  const auto second = trainer->latest_checkpoint_path();
  trainer->run([] {});  // saves nothing: there is no other latest one
  DOCTEST_CHECK(fs::exists(second));

  TestTrainer another({.num_workers = 1, .placement = Placement::thread});
  another->run(fn<save_losses>, {.config = {{"losses", {1, 2}}}, .checkpoint_strategy = best});
  const auto spare = another->latest_checkpoint_path();
  another->run(fn<save_losses>, {.config = {{"losses", {3}}}, .checkpoint_strategy = best});
  DOCTEST_CHECK(!fs::exists(spare.parent_path()));
}

DOCTEST_TEST_CASE("a run that goes on in its folder has the newest of before as its own") {
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  CheckpointStrategy best{.num_to_keep = 1, .checkpoint_score_attribute = "loss", .checkpoint_score_order = "min"};
  trainer->run(fn<save_losses>, {.config = {{"losses", {1, 2}}}, .checkpoint_strategy = best});
  best.num_to_keep = 2;
  trainer->run(fn<save_losses>, {.config = {{"losses", {3}}}, .checkpoint_strategy = best, .resume = true});
  DOCTEST_CHECK(names_in(trainer->latest_checkpoint_dir()) ==
                std::set<std::string>{"checkpoint_000001", "checkpoint_000002"});
  DOCTEST_CHECK(trainer->best_checkpoints().at(1).first.at<int>("loss") == 2);
  DOCTEST_CHECK(trainer->latest_checkpoint()->at<int>("loss") == 3);
}

DOCTEST_TEST_CASE("a run that another program has taken over ends with an error and commits nothing more") {
  TestTrainer trainer({.num_workers = 2});
  const Fifo go(trainer.folder() / "go");
  const auto run_dir = trainer->logdir() / "run_001";
  const auto journal = run_dir / "journal";
  const auto train_func = [](const Config& config) {
    train::save_checkpoint({{"by", "the first"}});
    train::flush();
    train::report({{"epoch", 0}});
    if (train::world_rank() == 0) wait_for_fifo(config["go"].get<std::string>());
    train::save_checkpoint({{"by", "the first"}});
    train::wait_for_stop();
  };
  auto taking_over = std::make_shared<FunctionCallback>();
  taking_over->on_result = [&](const auto&, const auto&) {
    // A file without the lock in its place: as on a file system that has none.
    fs::copy_file(journal, run_dir / "copy");
    fs::rename(run_dir / "copy", journal);
    auto other = Trainer::restore(run_dir, {.num_workers = 1, .placement = Placement::thread});
    other.run([] { train::save_checkpoint({{"by", "the other"}}); });
    write_fifo(go.path(), "x");
  };
  const auto error =
      error_of([&] { trainer->run(train_func, {.config = {{"go", go.path().string()}}, .callbacks = {taking_over}}); });
  DOCTEST_CHECK_MESSAGE(error.says("another program has taken over the run"), error.text);
  DOCTEST_CHECK(names_in(run_dir / "checkpoints") == std::set<std::string>{"checkpoint_000001", "checkpoint_000002"});
  const auto newest = Checkpoint::from_path(run_dir / "checkpoints" / "checkpoint_000002");
  DOCTEST_CHECK(newest.at<std::string>("by") == "the other");
  DOCTEST_CHECK(id_of(trainer->latest_checkpoint()) == 1);
  // What the other one wrote is as it was.
  const auto content = detail::read_journal(read_file(journal));
  DOCTEST_CHECK_FALSE(content.damaged);
  DOCTEST_REQUIRE(!content.records.empty());
  DOCTEST_CHECK(content.records.back()["record"] == "end");
  DOCTEST_CHECK(content.records.back()["status"] == "succeeded");
  DOCTEST_CHECK(Json::parse(read_file(run_dir / "run.json"))["outcome"]["status"] == "succeeded");
}

DOCTEST_TEST_CASE("a folder of files is saved, loaded after a lost worker, and found by the driver") {
  TestTrainer trainer({.num_workers = 2});
  const auto train_func = [](const Config& config) {
    if (const auto checkpoint = train::load_checkpoint()) return text_of(*checkpoint);
    const auto mine = fs::path(config["folder"].get<std::string>()) / std::to_string(train::world_rank());
    if (train::world_rank() == 0) {  // the others have none
      fs::create_directories(mine / "deep");
      std::ofstream(mine / "model.txt") << "weights";
      std::ofstream(mine / "deep" / "more.txt") << "moments";
    }
    train::save_checkpoint(mine, {.files = true});
    if (train::world_rank() == 0) std::ofstream(mine / "model.txt") << "changed since";
    train::flush();
    if (train::world_rank() == 1) ::kill(::getpid(), SIGKILL);
    train::wait_for_stop();
    return std::string();
  };
  const Json both{"weights moments", "weights moments"};
  DOCTEST_CHECK(Json(trainer->run(train_func, {.config = {{"folder", trainer.folder()}}})) == both);
  DOCTEST_REQUIRE(trainer->latest_checkpoint().has_value());
  DOCTEST_CHECK(trainer->latest_checkpoint()->has_files());
  const auto saved = trainer->latest_checkpoint_path();
  DOCTEST_CHECK(saved.filename() == "checkpoint_000001");
  DOCTEST_CHECK(text_of(Checkpoint::from_path(saved)) == "weights moments");

  // It goes into another run as any other does, and is saved again as it is.
  const auto again = [] {
    train::save_checkpoint(*train::load_checkpoint(), {.files = true});
    return text_of(*train::load_checkpoint());
  };
  DOCTEST_CHECK(Json(trainer->run(again, {.checkpoint = Checkpoint::from_path(saved)})) == both);
  DOCTEST_CHECK(trainer->latest_checkpoint_path() != saved);
  DOCTEST_CHECK(text_of(*trainer->latest_checkpoint()) == "weights moments");
}

DOCTEST_TEST_CASE("what is no folder of files is refused where it is saved") {
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  std::ofstream(trainer.folder() / "file") << "x";
  const auto results = trainer->run(
      [](const Config& config) {
        const fs::path folder = config["folder"].get<std::string>();
        const auto refused = [](const auto& what, train::SaveOptions options) {
          return thrown_by([&] { train::save_checkpoint(what, options); });
        };
        return std::vector{refused(folder, {.sharded = true, .files = true}),
                           refused(Checkpoint{{"epoch", 1}}, {.files = true}),
                           refused(folder / "none", {.files = true}), refused(folder / "file", {.files = true})};
      },
      {.config = {{"folder", trainer.folder()}}});
  const auto texts = results[0].get<std::vector<std::string>>();
  DOCTEST_CHECK(contains(texts[0], "invalid_argument: save_checkpoint(): a folder of files cannot be sharded"));
  DOCTEST_CHECK(contains(texts[1], "invalid_argument: save_checkpoint(): with files = true"));
  for (const auto place : {2, 3}) DOCTEST_CHECK(contains(texts.at(place), "is no folder"));
  DOCTEST_CHECK(trainer->latest_checkpoint() == std::nullopt);
}

DOCTEST_TEST_CASE("a folder of files without a disk to keep it on is told and training goes on") {
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  trainer->run([](const Config& config) { train::save_checkpoint(config["folder"].get<fs::path>(), {.files = true}); },
               {.config = {{"folder", trainer.folder().string()}}, .checkpoint_strategy = {.num_to_keep = 0}});
  DOCTEST_REQUIRE(trainer->checkpoint_errors().size() == 1);
  DOCTEST_CHECK(contains(trainer->checkpoint_errors()[0], "num_to_keep is 0: keep one, or save a dictionary"));
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

DOCTEST_TEST_CASE("a score that is missing ends the run although the function has returned, and no checkpoint goes") {
  const auto saves_four = [] {
    for (int epoch = 1; epoch <= 4; ++epoch) train::save_checkpoint({{"loss", epoch}});
  };
  const auto check = [&](const TrainerOptions& options) {
    TestTrainer trainer(options);
    const auto error = error_of([&] {
      trainer->run(saves_four, {.checkpoint_strategy = {.num_to_keep = 1, .checkpoint_score_attribute = "los"}});
    });
    DOCTEST_CHECK(error.training_failed);
    DOCTEST_CHECK(error.code == ErrorCode::invalid_option);
    DOCTEST_CHECK(error.says("\"los\""));
    const auto saved = names_in(trainer->latest_checkpoint_dir());
    DOCTEST_CHECK(!saved.empty());
    DOCTEST_CHECK(saved.size() == trainer->checkpoint_errors().size());
    const auto run = Json::parse(read_file(trainer->latest_run_dir() / "run.json"));
    DOCTEST_CHECK(run["outcome"]["status"] == "failed");
    DOCTEST_CHECK(run["checkpoints"]["committed"] == saved.size());
    // Nothing is lost: with the right name the best one is found.
    const auto before = trainer->latest_checkpoint()->at<int>("loss");
    trainer->run([] {},
                 {.checkpoint_strategy = {.num_to_keep = 1, .checkpoint_score_attribute = "loss"}, .resume = true});
    DOCTEST_CHECK(trainer->best_checkpoints().at(0).first.at<int>("loss") == before);
  };
  on_both_placements([&](Placement placement) { check({.num_workers = 2, .placement = placement}); });
  check({.num_workers = 0});
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
    train::save_checkpoint({{"epoch", 1}});
    train::save_checkpoint({{"name", "resnet"}});
    train::save_checkpoint({{"layers", {"conv", "linear"}}});
    train::save_checkpoint({{"nested", {{"a", {{"b", 1}}}}}});
    train::report({{"epoch", 1}}, {{"epoch", 1}});
    train::report({{"name", "resnet"}}, {{"name", "resnet"}});
    train::report({{"layers", {"conv", "linear"}}}, {{"layers", {"conv", "linear"}}});
    train::report({{"nested", {{"a", {{"b", 1}}}}}}, {{"nested", {{"a", {{"b", 1}}}}}});
  });
  for (int shape = 0; shape < 8; ++shape) {
    DOCTEST_CAPTURE(shape);
    const auto saved =
        Checkpoint::from_path(trainer->latest_checkpoint_dir() / fmt::format("checkpoint_{:06}", shape + 1));
    DOCTEST_CHECK(is_shape(saved, shape % 4));
  }
  const auto best = trainer->best_checkpoints();  // the newest first
  DOCTEST_REQUIRE(best.size() == 8);
  DOCTEST_CHECK(best[3].second["epoch"] == 1);
  DOCTEST_CHECK(best[2].second["name"] == "resnet");
  DOCTEST_CHECK(best[1].second["layers"] == Json{"conv", "linear"});
  DOCTEST_CHECK(best[0].second["nested"]["a"]["b"] == 1);
}

DOCTEST_TEST_CASE("braces of all shapes are what a run starts from") {
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  const auto shape_of = [] {
    const auto loaded = train::load_checkpoint();
    int shape = 0;
    while (shape < 4 && !(loaded && is_shape(*loaded, shape))) ++shape;
    return shape;
  };
  DOCTEST_CHECK(trainer->run(shape_of, {.checkpoint = {{"epoch", 1}}})[0] == 0);
  DOCTEST_CHECK(trainer->run(shape_of, {.checkpoint = {{"name", "resnet"}}})[0] == 1);
  DOCTEST_CHECK(trainer->run(shape_of, {.checkpoint = {{"layers", {"conv", "linear"}}}})[0] == 2);
  DOCTEST_CHECK(trainer->run(shape_of, {.checkpoint = {{"nested", {{"a", {{"b", 1}}}}}}})[0] == 3);
}
