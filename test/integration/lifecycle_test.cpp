// SPDX-License-Identifier: Apache-2.0
// start, run, shutdown in all orders; two trainers; log directories; what a trainer prints.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <future>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>

#include "test/integration/support.hpp"
#include "test/support/no_threads.hpp"

namespace troupe::test {
namespace {

namespace fs = std::filesystem;

int rank_plus(const Config& config) { return train::world_rank() + config.value("plus", 0); }

void report_until_stopped() {
  for (;;) train::report({{"x", 1}});
}

Json read_json(const fs::path& path) { return Json::parse(read_file(path)); }

}  // namespace

DOCTEST_TEST_CASE("one start serves several runs") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start();
    const auto pids = trainer->worker_pids();
    for (int plus = 0; plus < 5; ++plus)
      DOCTEST_CHECK(trainer->run(fn<rank_plus>, {.config = {{"plus", plus}}}).at(1) == 1 + plus);
    DOCTEST_CHECK(trainer->worker_pids() == pids);
    trainer->shutdown();
  });
}

DOCTEST_TEST_CASE("run starts a trainer that was not started") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    DOCTEST_CHECK(!trainer->started());
    DOCTEST_CHECK(trainer->worker_pids().empty());
    DOCTEST_CHECK(trainer->run(fn<rank_plus>).size() == 2);
    DOCTEST_CHECK(trainer->started());
    DOCTEST_CHECK(trainer->worker_pids().size() == 2);
  });
}

DOCTEST_TEST_CASE("a second start is refused and changes nothing") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start();
    const auto error = error_of([&] { trainer->start(); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK(error.says("shutdown()"));
    DOCTEST_CHECK(trainer->run(fn<rank_plus>).at(1) == 1);
  });
}

DOCTEST_TEST_CASE("a trainer can be started again after shutdown") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    for (int i = 0; i < 3; ++i) {
      trainer->start();
      DOCTEST_CHECK(trainer->run(fn<rank_plus>).at(1) == 1);
      trainer->shutdown();
      DOCTEST_CHECK(!trainer->started());
      DOCTEST_CHECK(trainer->worker_pids().empty());
      DOCTEST_CHECK(fs::exists(trainer->latest_run_dir()));  // what a run left stays readable
    }
    trainer->shutdown();  // once more is no error
    DOCTEST_CHECK(trainer->latest_run_dir().filename() == "run_003");
  });
}

DOCTEST_TEST_CASE("a trainer that is dropped in a run ends the run with an error") {
  on_both_placements([](Placement placement) {
    TempFolder folder;
    auto trainer = std::make_unique<Trainer>(
        TrainerOptions{.num_workers = 2, .logdir = folder.path() / "results", .placement = placement});
    auto iterator = trainer->run_iterator(fn<report_until_stopped>);
    auto round = iterator.begin();
    DOCTEST_CHECK(round->size() == 2);
    trainer.reset();
    const auto error = error_of([&] {
      while (round != iterator.end()) ++round;
    });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK(error.says("shut down"));
  });
}

DOCTEST_TEST_CASE("shutdown on another thread ends a run with an error") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start();
    std::promise<void> running;
    auto callback = std::make_shared<FunctionCallback>();
    callback->on_result = [&, first = true](const auto&, const auto&) mutable {
      if (std::exchange(first, false)) running.set_value();
    };
    auto stopper = std::async(std::launch::async, [&] {
      running.get_future().wait();
      trainer->shutdown();
    });
    const auto error = error_of([&] { trainer->run(fn<report_until_stopped>, {.callbacks = {callback}}); });
    stopper.get();
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK(error.says("shut down"));
    DOCTEST_CHECK(trainer->run(fn<rank_plus>).at(1) == 1);
  });
}

DOCTEST_TEST_CASE("shutdown before a run has begun ends it with an error") {
  const auto check = [](TrainerOptions options) {
    const int last = std::max(options.num_workers.max.value_or(1) - 1, 0);
    TestTrainer trainer(std::move(options));
    auto callback = std::make_shared<FunctionCallback>();
    callback->on_start = [&](const auto&) { trainer->shutdown(); };
    const auto error = error_of([&] { trainer->run(fn<report_until_stopped>, {.callbacks = {callback}}); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK(error.says("shut down"));
    DOCTEST_CHECK(trainer->run(fn<rank_plus>).at(static_cast<std::size_t>(last)) == last);
  };
  on_both_placements([&](Placement placement) { check({.num_workers = 2, .placement = placement}); });
  DOCTEST_CHECK(time_of([&] { check({.num_workers = 0, .shutdown_deadline = std::chrono::minutes(1)}); }) < patience);
}

DOCTEST_TEST_CASE("a thread of the program that reads from a stream holds nobody up") {
  std::array<int, 2> ends{};
  DOCTEST_REQUIRE(::pipe(ends.data()) == 0);
  std::FILE* stream = ::fdopen(ends[0], "r");
  std::promise<void> reading;
  auto reader = std::async(std::launch::async, [&] {
    ::flockfile(stream);  // as long as the read takes
    reading.set_value();
    const int got = std::fgetc(stream);
    ::funlockfile(stream);
    return got;
  });
  reading.get_future().wait();
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    DOCTEST_CHECK(trainer->run(fn<rank_plus>).at(0) == 0);
  });
  TestTrainer local({.num_workers = 0});
  DOCTEST_CHECK(local->run(fn<rank_plus>).at(0) == 0);
  DOCTEST_CHECK(::write(ends[1], "x", 1) == 1);
  DOCTEST_CHECK(reader.get() == 'x');
  std::fclose(stream);
  ::close(ends[1]);
}

DOCTEST_TEST_CASE("a thread of a worker that reads from a stream does not hold up its end") {
  TestTrainer trainer({.num_workers = 1, .shutdown_deadline = std::chrono::minutes(1)});
  trainer->run([] {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
    std::promise<void> reading;
    std::thread([&reading, stream = ::fdopen(ends[0], "r")] {
      ::flockfile(stream);
      reading.set_value();
      std::fgetc(stream);
    }).detach();
    reading.get_future().wait();
  });
  DOCTEST_CHECK(time_of([&] { trainer->shutdown(); }) < patience);
  const auto log = read_file(trainer->latest_run_dir() / "logs" / "rank_0.log");
  DOCTEST_CHECK(log.find("a thread of this worker sits in a stream") != std::string::npos);
}

DOCTEST_TEST_CASE("a run beside a run of the same trainer is refused") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    auto iterator = trainer->run_iterator(fn<report_until_stopped>);
    const auto error = error_of([&] { trainer->run(fn<rank_plus>); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK(error.says("second Trainer"));
  });
}

DOCTEST_TEST_CASE("two trainers at once do not disturb each other") {
  for (auto other : {Placement::process, Placement::thread}) {
    TestTrainer first({.num_workers = 2, .placement = Placement::process});
    TestTrainer second({.num_workers = 3, .placement = other});
    // Round by round in turn, so that both are in a run all the time.
    constexpr auto function = [](const Config& config) {
      for (int i = 0; i < 50; ++i) train::report({{"i", i}, {"name", config["name"]}});
      return config["name"].get<std::string>();
    };
    auto first_rounds = first->run_iterator(function, {.config = {{"name", "first"}}});
    auto second_rounds = second->run_iterator(function, {.config = {{"name", "second"}}});
    auto a = first_rounds.begin();
    auto b = second_rounds.begin();
    int rounds = 0;
    for (; a != first_rounds.end() && b != second_rounds.end(); ++a, ++b, ++rounds) {
      DOCTEST_REQUIRE(a->size() == 2);
      DOCTEST_REQUIRE(b->size() == 3);
      DOCTEST_CHECK(a->at(1)["i"] == rounds);
      DOCTEST_CHECK(b->at(2)["i"] == rounds);
      DOCTEST_CHECK(a->at(0)["name"] == "first");
      DOCTEST_CHECK(b->at(0)["name"] == "second");
    }
    DOCTEST_CHECK(rounds == 50);
    first->shutdown();
    DOCTEST_CHECK(second_rounds.get_returns() == std::vector<Json>(3, "second"));
    DOCTEST_CHECK(second->run(fn<rank_plus>).size() == 3);
  }
}

DOCTEST_TEST_CASE("two trainers may run on two threads") {
  on_both_placements([](Placement placement) {
    std::vector<std::future<int>> sums;
    for (int i = 0; i < 2; ++i)
      sums.push_back(std::async(std::launch::async, [placement, i] {
        int sum = 0;
        TestTrainer trainer({.num_workers = 2, .placement = placement});
        for (int k = 0; k < 10; ++k)
          for (const auto& one : trainer->run(fn<rank_plus>, {.config = {{"plus", 100 * i}}})) sum += one.get<int>();
        return sum;
      }));
    DOCTEST_CHECK(sums[0].get() == 10);
    DOCTEST_CHECK(sums[1].get() == 2010);
  });
}

DOCTEST_TEST_CASE("a trainer can be moved while its workers are up") {
  on_both_placements([](Placement placement) {
    TempFolder folder;
    Trainer first({.num_workers = 2, .logdir = folder.path() / "results", .placement = placement});
    auto group = (first.start(), first.workers());
    Trainer second = std::move(first);
    DOCTEST_CHECK(group.execute_single([] { return train::world_size(); }) == 2);
    DOCTEST_CHECK(second.run(fn<rank_plus>).at(1) == 1);
  });
}

DOCTEST_TEST_CASE("a worker group may be given any patience for its end") {
  using std::chrono::milliseconds;
  for (const auto given : {milliseconds::min(), milliseconds(-1), milliseconds(0), milliseconds::max()}) {
    DOCTEST_CAPTURE(given.count());
    TestTrainer trainer({.num_workers = 1});
    trainer->start();
    trainer->workers().shutdown(given);
    DOCTEST_CHECK(!trainer->started());
  }
}

DOCTEST_TEST_CASE("run folders are numbered and hold the run's story") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    DOCTEST_CHECK(trainer->latest_run_dir().empty());
    DOCTEST_CHECK(fs::is_directory(trainer->logdir()));
    trainer->run(fn<rank_plus>, {.config = {{"plus", 7}}});
    DOCTEST_CHECK(trainer->latest_run_dir() == trainer->logdir() / "run_001");
    const auto story = read_json(trainer->latest_run_dir() / "run.json");
    DOCTEST_CHECK(story["versions"]["troupe"] == TROUPE_VERSION);
    DOCTEST_CHECK(story["versions"].contains("caf"));
    DOCTEST_CHECK(story["config"].dump() == R"({"plus":7})");
    DOCTEST_CHECK(story["function"].get<std::string>().find("rank_plus") != std::string::npos);
    DOCTEST_CHECK(story["num_workers"] == 2);
    DOCTEST_CHECK(story["placement"] == (placement == Placement::process ? "process" : "thread"));
    DOCTEST_REQUIRE(story["ranks"].size() == 2);
    DOCTEST_CHECK(story["ranks"][1]["rank"] == 1);
    DOCTEST_CHECK(story["ranks"][1]["pid"] == trainer->worker_pids()[1]);
    DOCTEST_CHECK(!story["ranks"][1]["host"].get<std::string>().empty());
    DOCTEST_CHECK(story["ranks"][1]["start_ms"] > 0);
    DOCTEST_CHECK(story["timings"]["workers_ms"] > 0);
    DOCTEST_CHECK(story["timings"]["run_ms"] > 0);
    DOCTEST_CHECK(story["outcome"].dump() == R"({"status":"succeeded","attempts":1})");

    error_of([&] { trainer->run([] { throw std::runtime_error("broken \xff data"); }); });
    DOCTEST_CHECK(trainer->latest_run_dir() == trainer->logdir() / "run_002");
    const auto failed = read_json(trainer->latest_run_dir() / "run.json")["outcome"];
    DOCTEST_CHECK(failed["status"] == "failed");
    DOCTEST_CHECK(failed["code"] == "user_code");
    DOCTEST_CHECK(failed["error"].get<std::string>().find("broken") != std::string::npos);
  });
}

DOCTEST_TEST_CASE("run.json says running and stopped as well") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    {
      auto iterator = trainer->run_iterator(fn<report_until_stopped>);
      iterator.begin();
      DOCTEST_CHECK(read_json(trainer->latest_run_dir() / "run.json")["outcome"]["status"] == "running");
    }
    DOCTEST_CHECK(read_json(trainer->latest_run_dir() / "run.json")["outcome"]["status"] == "stopped");
  });
}

DOCTEST_TEST_CASE("a relative log directory lies in the home folder's troupe_results") {
  TempFolder home;
  EnvironmentGuard guard("HOME", home.path().c_str());
  Trainer relative({.num_workers = 1, .logdir = "my/run", .placement = Placement::thread});
  DOCTEST_CHECK(relative.logdir() == home.path() / "troupe_results/my/run");
  Trainer dated({.num_workers = 1, .placement = Placement::thread});
  Trainer again({.num_workers = 1, .placement = Placement::thread});
  DOCTEST_CHECK(dated.logdir().parent_path() == home.path() / "troupe_results");
  DOCTEST_CHECK(dated.logdir().filename().string().starts_with("train_"));
  DOCTEST_CHECK(fs::is_directory(dated.logdir()));
  DOCTEST_CHECK(dated.logdir() != again.logdir());
}

DOCTEST_TEST_CASE("a trainer prints its resources and workers") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer(
        {.num_workers = 2, .resources_per_worker = {{"CPU", 1.5}, {"disk", 3}}, .placement = placement});
    const auto before = fmt::format("{}", *trainer);
    DOCTEST_CHECK(before.find("not started") != std::string::npos);
    trainer->start();
    const auto text = fmt::format("{}", *trainer);
    std::ostringstream out;
    out << *trainer;
    DOCTEST_CHECK(out.str() == text);
    for (const auto* part : {"2 workers", "CPU", "1.5", "GPU", "disk", "rank", "pid", "ready"})
      DOCTEST_CHECK_MESSAGE(text.find(part) != std::string::npos, part);
    DOCTEST_CHECK(text.find(std::to_string(trainer->worker_pids()[1])) != std::string::npos);
    DOCTEST_CHECK(text.find(trainer->logdir().string()) != std::string::npos);
  });
}

DOCTEST_TEST_CASE("more GPUs than there are is an error of start") {
  TestTrainer trainer({.num_workers = 4, .use_gpu = true, .resources_per_worker = {{"GPU", 1000}}});
  const auto error = error_of([&] { trainer->start(); });
  DOCTEST_CHECK(error.code == ErrorCode::start_failed);
  DOCTEST_CHECK(error.says("4000 GPUs"));
  DOCTEST_CHECK(!trainer->started());
}

DOCTEST_TEST_CASE("a run that the system has no thread for is an error and later ones are not") {
  TestTrainer other({.num_workers = 1, .placement = Placement::thread});
  for (const int num_workers : {0, 2}) {
    DOCTEST_CAPTURE(num_workers);
    TestTrainer trainer({.num_workers = num_workers});
    trainer->run(fn<rank_plus>);
    const auto descriptors = open_descriptors(::getpid());
    const auto check_refused = [&](const std::string& thread, auto&& run) {
      const auto error = error_of([&] {
        const NoThreads none;
        run();
      });
      DOCTEST_CHECK(error.code == ErrorCode::start_failed);
      DOCTEST_CHECK_MESSAGE(error.says(thread), error.text);
    };
    check_refused("Ctrl-C", [&] { trainer->run(fn<rank_plus>); });
    check_refused(num_workers == 0 ? "train function" : "Ctrl-C", [&] { trainer->run_iterator(fn<rank_plus>); });
    DOCTEST_CHECK(read_json(trainer->latest_run_dir() / "run.json")["outcome"]["status"] == "failed");
    DOCTEST_CHECK(open_descriptors(::getpid()) == descriptors);
    {
      auto active = other->run_iterator(fn<report_until_stopped>);  // waits for Ctrl-C already
      active.begin();                                               // and has all its threads
      check_refused("callbacks", [&] { trainer->run(fn<rank_plus>); });
      if (num_workers > 0) check_refused("checkpoints", [&] { trainer->run_iterator(fn<rank_plus>).begin(); });
    }
    DOCTEST_CHECK(read_json(trainer->latest_run_dir() / "run.json")["outcome"]["status"] == "failed");
    DOCTEST_CHECK(trainer->run(fn<rank_plus>).size() == static_cast<std::size_t>(std::max(num_workers, 1)));
    trainer->execute_single([] { return 1; });  // which a run would have to itself in local mode
  }
}

}  // namespace troupe::test
