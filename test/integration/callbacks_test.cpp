// SPDX-License-Identifier: Apache-2.0
// Callbacks, on both placements.
#include <future>
#include <mutex>
#include <thread>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

Json report_three() {
  for (int i = 0; i < 3; ++i) train::report({{"i", i}});
  return "done";
}

Json report_until_stopped() {
  for (;;) train::report({{"x", 1}});
}

/// Writes down what it is asked for.
class Diary : public TrainingCallback {
public:
  Diary(std::string name, std::vector<std::string>& lines) : name_(std::move(name)), lines_(lines) {}
  void start_training(const TrainingInfo&) override { lines_.push_back(name_ + " start"); }
  void handle_result(const std::vector<Json>& results, const ResultInfo& info) override {
    lines_.push_back(name_ + " round " + std::to_string(info.round) + " of " + std::to_string(results.size()));
  }
  void finish_training(bool error) override { lines_.push_back(name_ + (error ? " failed" : " well")); }

private:
  std::string name_;
  std::vector<std::string>& lines_;
};

/// Written with the names of RaySGD v2.
class Counting : public troupe::SGDCallback {
public:
  void handle_result(const std::vector<Json>& results, const ResultInfo&) override { seen += results.size(); }
  std::size_t seen = 0;
};

std::shared_ptr<FunctionCallback> throwing_in(const std::string& hook) {
  auto callback = std::make_shared<FunctionCallback>();
  const auto fail = [hook] { throw std::runtime_error("disk full in " + hook); };
  if (hook == "start_training") callback->on_start = [fail](const auto&) { fail(); };
  if (hook == "handle_result") callback->on_result = [fail](const auto&, const auto&) { fail(); };
  if (hook == "finish_training") callback->on_finish = [fail](bool) { fail(); };
  return callback;
}

}  // namespace

DOCTEST_TEST_CASE("callbacks are called in order from start to finish") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    std::vector<std::string> lines;
    trainer->run(fn<report_three>,
                 {.callbacks = {std::make_shared<Diary>("a", lines), std::make_shared<Diary>("b", lines)}});
    DOCTEST_CHECK(lines == std::vector<std::string>{"a start", "b start", "a round 1 of 2", "b round 1 of 2",
                                                    "a round 2 of 2", "b round 2 of 2", "a round 3 of 2",
                                                    "b round 3 of 2", "a well", "b well"});
  });
}

DOCTEST_TEST_CASE("a callback and a trainer under RaySGD's names are the same") {
  TempFolder folder;
  const auto counting = std::make_shared<Counting>();
  sgd::Trainer trainer(sgd::TrainerOptions{.num_workers = 2, .logdir = folder.path() / "results"});
  const std::shared_ptr<sgd::SGDCallback> callback = counting;
  trainer.run(fn<report_three>, sgd::RunOptions{.callbacks = {callback}});
  DOCTEST_CHECK(counting->seen == 6);
}

DOCTEST_TEST_CASE("callbacks know the run") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    auto recorder = std::make_shared<Recorder>();
    trainer->run(fn<report_three>, {.config = {{"lr", 0.1}}, .callbacks = {recorder}});
    DOCTEST_CHECK(recorder->started == 1);
    DOCTEST_CHECK(recorder->info.logdir == trainer->latest_run_dir());
    DOCTEST_CHECK(recorder->info.config.dump() == R"({"lr":0.1})");
    DOCTEST_CHECK(recorder->info.world_size == 2);
    DOCTEST_REQUIRE(recorder->infos.size() == 3);
    DOCTEST_CHECK(recorder->infos[2].attempt == 1);
    DOCTEST_CHECK(recorder->infos[2].round == 3);
    DOCTEST_CHECK(recorder->infos[2].world_size == 2);
    DOCTEST_CHECK(recorder->finishes == std::vector<bool>{false});
    recorder->infos[2].stop();  // the run is over: nothing happens
    DOCTEST_CHECK(trainer->run(fn<report_three>).size() == 2);
    recorder->infos[2].stop();
  });
}

DOCTEST_TEST_CASE("callbacks run on one thread that is not the user's") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    std::vector<std::thread::id> ids;
    auto callback = std::make_shared<FunctionCallback>();
    callback->on_start = [&](const auto&) { ids.push_back(std::this_thread::get_id()); };
    callback->on_result = [&](const auto&, const auto&) { ids.push_back(std::this_thread::get_id()); };
    callback->on_finish = [&](bool) { ids.push_back(std::this_thread::get_id()); };
    trainer->run(fn<report_three>, {.callbacks = {callback}});
    DOCTEST_CHECK(ids == std::vector<std::thread::id>(5, ids.at(0)));
    DOCTEST_CHECK(ids.at(0) != std::this_thread::get_id());
  });
}

DOCTEST_TEST_CASE("the error flag of finish_training is true when the function throws") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    auto recorder = std::make_shared<Recorder>();
    error_of([&] { trainer->run([] { throw std::runtime_error("no"); }, {.callbacks = {recorder}}); });
    DOCTEST_CHECK(recorder->finishes == std::vector<bool>{true});
  });
}

DOCTEST_TEST_CASE("an exception in any hook ends the run with its text") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    for (const auto* hook : {"start_training", "handle_result", "finish_training"}) {
      DOCTEST_CAPTURE(hook);
      auto recorder = std::make_shared<Recorder>();
      auto behind = std::make_shared<Recorder>();
      const Fn function = std::string(hook) == "handle_result" ? fn<report_until_stopped> : fn<report_three>;
      const auto error =
          error_of([&] { trainer->run(function, {.callbacks = {recorder, throwing_in(hook), behind}}); });
      DOCTEST_CHECK(error.training_failed);
      DOCTEST_CHECK(error.code == ErrorCode::callback_failed);
      DOCTEST_CHECK(error.says(std::string("disk full in ") + hook));
      DOCTEST_CHECK(error.says(std::string(hook) + "()"));
      const auto outcome = Json::parse(read_file(trainer->latest_run_dir() / "run.json"))["outcome"];
      DOCTEST_CHECK(outcome["status"] == "failed");
      DOCTEST_CHECK(outcome["error"].get<std::string>().find(hook) != std::string::npos);
      DOCTEST_CHECK(recorder->started == 1);
      // finish_training() is told the truth as far as it is known when it is called.
      DOCTEST_CHECK(recorder->finishes == std::vector<bool>{std::string(hook) != "finish_training"});
      DOCTEST_CHECK(behind->finishes == std::vector<bool>(std::string(hook) == "start_training" ? 0 : 1, true));
      DOCTEST_CHECK(trainer->run(fn<report_three>).at(1) == "done");
    }
  });
}

DOCTEST_TEST_CASE("a callback whose start_training threw gets no finish_training and no worker runs") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    auto failing = throwing_in("start_training");
    bool finished = false;
    failing->on_finish = [&](bool) { finished = true; };
    auto later = std::make_shared<Recorder>();
    constexpr auto function = [](const Config& config) { is_first(config["folder"].get<std::string>(), "ran"); };
    error_of(
        [&] { trainer->run(function, {.config = {{"folder", trainer.folder()}}, .callbacks = {failing, later}}); });
    DOCTEST_CHECK(!finished);
    DOCTEST_CHECK(later->started == 0);
    DOCTEST_CHECK(later->finishes.empty());
    DOCTEST_CHECK(is_first(trainer.folder(), "ran"));
  });
}

DOCTEST_TEST_CASE("info.stop ends the run well") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    auto callback = std::make_shared<FunctionCallback>();
    std::optional<bool> error;
    callback->on_result = [](const auto&, const ResultInfo& info) {
      if (info.round == 10) info.stop();
    };
    callback->on_finish = [&](bool flag) { error = flag; };
    const auto unwound = trainer->run(fn<report_until_stopped>, {.callbacks = {callback}});
    DOCTEST_CHECK(Json(unwound).dump() == "[null,null]");
    DOCTEST_CHECK(error == false);
    const auto returned = trainer->run(
        [] {
          int rounds = 0;
          try {
            for (;; ++rounds) train::report({{"x", 1}});
          } catch (const Stopped&) {
          }
          return train::should_stop() && rounds >= 10 ? "saw it" : "did not see it";
        },
        {.callbacks = {callback}});
    DOCTEST_CHECK(returned == std::vector<Json>(2, "saw it"));
  });
}

DOCTEST_TEST_CASE("a function that only asks should_stop is stopped") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    auto callback = std::make_shared<FunctionCallback>();
    callback->on_result = [](const auto&, const ResultInfo& info) { info.stop(); };
    const auto results = trainer->run(
        [] {
          train::report({{"x", 1}});
          train::wait_for_stop();
          return "stopped";
        },
        {.callbacks = {callback}});
    DOCTEST_CHECK(results == std::vector<Json>(2, "stopped"));
  });
}

DOCTEST_TEST_CASE("a null callback is refused") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    const auto error = error_of([&] { trainer->run(fn<report_three>, {.callbacks = {nullptr}}); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_argument);
    DOCTEST_CHECK(error.says("callback is null"));
  });
}

DOCTEST_TEST_CASE("the JSON logger writes results.json into the run's folder") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    auto logger = std::make_shared<JsonLoggerCallback>(JsonLoggerOptions{.workers_to_log = std::nullopt});
    trainer->run(fn<report_three>, {.callbacks = {logger}});
    DOCTEST_CHECK(logger->log_path() == trainer->latest_run_dir() / "results.json");
    const auto rounds = Json::parse(read_file(logger->log_path()));
    DOCTEST_REQUIRE(rounds.size() == 3);
    DOCTEST_REQUIRE(rounds[2].size() == 2);
    DOCTEST_CHECK(rounds[2][1]["i"] == 2);
  });
}

}  // namespace troupe::test
