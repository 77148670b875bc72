// SPDX-License-Identifier: Apache-2.0
// num_workers = 0: everything happens in the caller's thread, with the same API.
#include <sys/resource.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

std::thread::id function_thread;

Json report_three(const Config& config) {
  function_thread = std::this_thread::get_id();
  for (int i = 0; i < 3; ++i) train::report({{"i", i}, {"lr", config.value("lr", 0.0)}});
  return {train::world_rank(), train::local_rank(), train::world_size(), train::in_worker(), train::should_stop()};
}

void report_until_stopped() {
  for (int i = 0;; ++i) train::report({{"i", i}});
}

struct Counter {
  explicit Counter(int start) : value(start) {}
  int value;
};

}  // namespace

DOCTEST_TEST_CASE("a run that cannot be given its checkpoint ends with an error") {
  TrainerOptions options;
  DOCTEST_SUBCASE("in local mode") { options.num_workers = 0; }
  DOCTEST_SUBCASE("on threads") { options = {.num_workers = 1, .placement = Placement::thread}; }
  DOCTEST_SUBCASE("on processes") { options = {.num_workers = 1}; }
  TestTrainer trainer(options);
  trainer->start();
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_start = [&](const auto&) {
    const rlimit none{0, before.rlim_max};  // no further descriptor
    ::setrlimit(RLIMIT_NOFILE, &none);
  };
  callback->on_finish = [&](bool) { ::setrlimit(RLIMIT_NOFILE, &before); };
  const Checkpoint large{{"text", std::string(200'000, 'x')}};
  const auto error = error_of([&] { trainer->run(fn<report_three>, {.callbacks = {callback}, .checkpoint = large}); });
  DOCTEST_CHECK(error.code == ErrorCode::io);
  DOCTEST_CHECK(error.says("Too many open files"));
  DOCTEST_CHECK(trainer->run(fn<report_three>, {.checkpoint = large}).size() == 1);
}

DOCTEST_TEST_CASE("local mode runs the function in the caller's thread") {
  TestTrainer trainer({.num_workers = 0});
  auto recorder = std::make_shared<Recorder>();
  trainer->start();
  const auto results = trainer->run(fn<report_three>, {.config = {{"lr", 0.5}}, .callbacks = {recorder}});
  DOCTEST_CHECK(function_thread == std::this_thread::get_id());
  DOCTEST_CHECK(Json(results).dump() == "[[0,0,1,true,false]]");
  DOCTEST_REQUIRE(recorder->rounds.size() == 3);
  DOCTEST_CHECK(recorder->rounds[2].at(0)["i"] == 2);
  DOCTEST_CHECK(recorder->rounds[2].at(0)["lr"] == 0.5);
  DOCTEST_CHECK(recorder->rounds[2].at(0)["_training_iteration"] == 3);
  DOCTEST_CHECK(recorder->infos[0].world_size == 1);
  DOCTEST_CHECK(recorder->finishes == std::vector<bool>{false});
  DOCTEST_CHECK(!train::in_worker());  // the thread is the driver's again
  DOCTEST_CHECK(trainer->worker_pids() == std::vector<int>{::getpid()});
  DOCTEST_CHECK(trainer->num_workers() == 0);
  DOCTEST_CHECK(std::filesystem::exists(trainer->latest_run_dir() / "run.json"));
  DOCTEST_CHECK(trainer->to_string().find("local mode") != std::string::npos);
  trainer->shutdown();
  DOCTEST_CHECK(trainer->run(fn<report_three>).size() == 1);  // starts again
}

DOCTEST_TEST_CASE("local mode iterates with a helper thread") {
  TestTrainer trainer({.num_workers = 0});
  auto iterator = trainer->run_iterator(fn<report_three>);
  int rounds = 0;
  for (auto& round : iterator) DOCTEST_CHECK(round.at(0)["i"] == rounds++);
  DOCTEST_CHECK(rounds == 3);
  DOCTEST_CHECK(function_thread != std::this_thread::get_id());
  DOCTEST_CHECK(iterator.get_returns().size() == 1);
  for (auto& round : trainer->run_iterator(fn<report_until_stopped>))
    if (round.at(0)["i"] == 5000) break;  // more than the window: the helper waits for us
  DOCTEST_CHECK(trainer->run(fn<report_three>).size() == 1);
}

DOCTEST_TEST_CASE("local mode tells errors as workers do") {
  TestTrainer trainer({.num_workers = 0});
  auto recorder = std::make_shared<Recorder>();
  const auto error =
      error_of([&] { trainer->run([] { throw std::runtime_error("broken"); }, {.callbacks = {recorder}}); });
  DOCTEST_CHECK(error.training_failed);
  DOCTEST_CHECK(error.code == ErrorCode::user_code);
  DOCTEST_CHECK(error.rank == 0);
  DOCTEST_CHECK(error.says("broken"));
  DOCTEST_CHECK(recorder->finishes == std::vector<bool>{true});
  const auto key = error_of([&] { trainer->run([](const Config& config) { return config["lr"].get<double>(); }); });
  DOCTEST_CHECK(key.says("\"lr\""));
  const auto braces = error_of([&] { trainer->run(fn<report_three>, {.config = Json::array({1})}); });
  DOCTEST_CHECK(braces.says("braces"));
  const auto array = error_of([&] { trainer->run([] { train::report({1, 2}); }); });
  DOCTEST_CHECK(array.code == ErrorCode::invalid_argument);
  DOCTEST_CHECK(!train::in_worker());
}

DOCTEST_TEST_CASE("local mode retries user errors when asked") {
  TestTrainer trainer({.num_workers = 0, .max_retries = 2, .retry_user_errors = true});
  auto recorder = std::make_shared<Recorder>();
  constexpr auto fails_twice = [](const Config& config) {
    train::report({{"x", 1}});
    const std::filesystem::path folder = config["folder"].get<std::string>();
    for (const auto* name : {"a", "b"})
      if (is_first(folder, name)) throw std::runtime_error(std::string("not yet ") + name);
    return "third time";
  };
  const auto results = trainer->run(fails_twice, {.config = {{"folder", trainer.folder()}}, .callbacks = {recorder}});
  DOCTEST_CHECK(results.at(0) == "third time");
  DOCTEST_REQUIRE(recorder->infos.size() == 3);
  DOCTEST_CHECK(recorder->infos[2].attempt == 3);
  DOCTEST_CHECK(recorder->infos[2].round == 1);
}

DOCTEST_TEST_CASE("what local mode's function throws after it was stopped is no failure") {
  TestTrainer trainer({.num_workers = 0});
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [](const auto&, const ResultInfo& info) { info.stop(); };
  constexpr auto throws_when_stopped = [] {
    train::report({{"x", 1}});
    train::wait_for_stop();
    throw std::runtime_error("half of it is missing");
  };
  DOCTEST_CHECK(trainer->run(throws_when_stopped, {.callbacks = {callback}}).at(0).is_null());
}

DOCTEST_TEST_CASE("local mode stops when a callback says so") {
  TestTrainer trainer({.num_workers = 0});
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [](const auto&, const ResultInfo& info) {
    if (info.round == 3) info.stop();
  };
  DOCTEST_CHECK(trainer->run(fn<report_until_stopped>, {.callbacks = {callback}}).at(0).is_null());
  const auto value = trainer->run(
      [] {
        try {
          for (;;) train::report({{"x", 1}});
        } catch (const Stopped&) {
        }
        return "returned";
      },
      {.callbacks = {callback}});
  DOCTEST_CHECK(value.at(0) == "returned");
  callback->on_result = [](const auto&, const auto&) { throw std::runtime_error("disk full"); };
  const auto error = error_of([&] { trainer->run(fn<report_until_stopped>, {.callbacks = {callback}}); });
  DOCTEST_CHECK(error.code == ErrorCode::callback_failed);
}

DOCTEST_TEST_CASE("local mode has stateful workers and hooks") {
  TestTrainer trainer({.num_workers = 0});
  trainer->start<Counter>(5);
  auto group = trainer->workers();
  DOCTEST_CHECK(group.size() == 1);
  DOCTEST_CHECK(group.execute([](Counter& counter, int n) { return counter.value += n; }, 2) == std::vector<int>{7});
  DOCTEST_CHECK(trainer->execute_single([](Counter& counter) { return counter.value; }) == 7);
  DOCTEST_CHECK(trainer->execute_single([] { return train::world_size(); }) == 1);
  const auto error = error_of([&] { trainer->execute_single([](Counter&) { throw std::runtime_error("no"); }); });
  DOCTEST_CHECK(error.code == ErrorCode::user_code);
  DOCTEST_CHECK(error.rank == 0);
  DOCTEST_CHECK(!train::in_worker());
  trainer->shutdown();
  DOCTEST_CHECK(error_of([&] { group.execute([] { return 1; }); }).code == ErrorCode::invalid_state);
  const auto hook = error_of([&] { trainer->start([] { throw std::runtime_error("no licence"); }); });
  DOCTEST_CHECK(hook.says("no licence"));
}

DOCTEST_TEST_CASE("a worker group of local mode shuts its trainer down, and it starts again") {
  TestTrainer trainer({.num_workers = 0});
  trainer->to_worker_group<Counter>(1).shutdown();
  DOCTEST_CHECK(!trainer->started());
  DOCTEST_CHECK(trainer->run(fn<report_three>).size() == 1);
}

DOCTEST_TEST_CASE("local mode refuses a call while a function runs") {
  TestTrainer trainer({.num_workers = 0});
  trainer->start<Counter>(5);
  const auto check_refused = [&] {
    const auto error = error_of([&] { trainer->execute_single([](Counter& counter) { return counter.value; }); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK(error.says("a run is active"));
  };
  {
    auto rounds = trainer->run_iterator(fn<report_until_stopped>);
    check_refused();  // though the function may not have begun yet
    for (auto& round : rounds) {
      check_refused();
      if (round.at(0)["i"] == 3) break;
    }
  }
  DOCTEST_CHECK(trainer->execute_single([](Counter& counter) { return counter.value; }) == 5);
}

DOCTEST_TEST_CASE("local mode survives a thread that reports when the run is over") {
  TestTrainer trainer({.num_workers = 0});
  Fifo gate(trainer.folder() / "gate");
  static std::thread late;
  trainer->run(
      [](const Config& config) {
        late = std::thread([context = train::context(), gate = config["gate"].get<std::string>()] {
          train::ContextGuard guard(context);
          wait_for_fifo(gate);
          try {
            train::wait_for_stop();
            for (int i = 0; i < 2000; ++i) train::report({{"late", i}});  // more than anybody would take
          } catch (const Error&) {
          }
        });
      },
      {.config = {{"gate", gate.path()}}});
  write_fifo(gate.path(), "x");
  late.join();
  DOCTEST_CHECK(trainer->run(fn<report_three>).size() == 1);
}

DOCTEST_TEST_CASE("local mode says what to change when its function does not stop, and the run ends when that does") {
  static std::promise<void> begun;
  static std::promise<void> may_return;
  TestTrainer trainer({.num_workers = 0, .shutdown_deadline = std::chrono::milliseconds(1)});
  auto rounds = trainer->run_iterator([] {
    begun.set_value();
    may_return.get_future().wait();
  });
  begun.get_future().wait();
  const auto stuck = error_of([&] { trainer->shutdown(); });
  may_return.set_value();
  DOCTEST_CHECK(stuck.code == ErrorCode::deadline);
  DOCTEST_CHECK(stuck.rank == 0);
  DOCTEST_CHECK(stuck.says("did not stop within 1 ms (shutdown_deadline): let it call train::report()"));
  const auto ended = error_of([&] { rounds.get_final_results(true); });
  DOCTEST_CHECK(ended.code == ErrorCode::invalid_state);
  DOCTEST_CHECK(ended.says("shut down"));
  const auto story = Json::parse(read_file(trainer->latest_run_dir() / "run.json"));
  DOCTEST_CHECK(story["outcome"]["status"] == "failed");
  DOCTEST_CHECK(trainer->run(fn<report_three>).size() == 1);
}

DOCTEST_TEST_CASE("fewer than zero workers are refused") {
  TempFolder folder;
  const auto error = error_of([&] { Trainer({.num_workers = -1, .logdir = folder.path()}); });
  DOCTEST_CHECK(error.code == ErrorCode::invalid_option);
  DOCTEST_CHECK(error.says("local mode"));
}

}  // namespace troupe::test
