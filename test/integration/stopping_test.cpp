// SPDX-License-Identifier: Apache-2.0
// Functions that do not stop, workers that do not listen, and deadlines.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

using std::chrono::milliseconds;

void never_return() {
  train::report({{"x", 1}});
  for (;;) ::pause();
}

void swallow_stop() {
  for (;;) {
    try {
      train::report({{"x", 1}});
    } catch (...) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
}

Json rank() { return train::world_rank(); }

/// Large enough that writing it takes longer than the deadline below.
void save_much_and_wait() {
  const std::size_t bytes = train::world_rank() == 0 ? std::size_t{400} << 20 : 1;
  train::save_checkpoint({{"data", TensorData::of(std::vector<std::uint8_t>(bytes, 7))}});
  train::report({{"x", 1}});
  train::wait_for_stop();
}

// For thread ranks that must be let go.
std::atomic<bool> let_go{false};
std::atomic<int> stuck_count{0};

void stick() {
  train::report({{"x", 1}});
  if (train::world_rank() != 1) return;
  stuck_count += 1;
  while (!let_go) std::this_thread::sleep_for(milliseconds(1));
  stuck_count -= 1;
}

void free_stuck_threads() {
  let_go = true;
  while (stuck_count > 0) std::this_thread::yield();
  let_go = false;
}

}  // namespace

DOCTEST_TEST_CASE("a function that never returns is ended when its iterator is dropped") {
  for (const Fn function : {fn<never_return>, fn<swallow_stop>}) {
    TestTrainer trainer({.num_workers = 2, .shutdown_deadline = milliseconds(200)});
    trainer->start();
    const auto took = time_of([&] {
      auto iterator = trainer->run_iterator(function);
      DOCTEST_CHECK(iterator.begin()->size() == 2);
    });
    DOCTEST_CHECK(took >= milliseconds(200));
    DOCTEST_CHECK(took < milliseconds(5000));
    DOCTEST_CHECK(Json(trainer->run(fn<rank>)).dump() == "[0,1]");  // the killed were replaced
  }
}

DOCTEST_TEST_CASE("a function that never returns is ended when a callback stops the run") {
  TestTrainer trainer({.num_workers = 2, .shutdown_deadline = milliseconds(200)});
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [](const auto&, const ResultInfo& info) { info.stop(); };
  DOCTEST_CHECK(Json(trainer->run(fn<never_return>, {.callbacks = {callback}})).dump() == "[null,null]");
  callback->on_result = [](const auto&, const auto&) { throw std::runtime_error("enough"); };
  const auto error = error_of([&] { trainer->run(fn<never_return>, {.callbacks = {callback}}); });
  DOCTEST_CHECK(error.code == ErrorCode::callback_failed);
  DOCTEST_CHECK(error.says("enough"));
}

DOCTEST_TEST_CASE("a worker that was stopped writes what it saved before, however long that takes") {
  TestTrainer trainer({.num_workers = 2, .shutdown_deadline = milliseconds(20)});
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [](const auto&, const ResultInfo& info) { info.stop(); };
  trainer->run(fn<save_much_and_wait>, {.callbacks = {callback}});
  const auto latest = trainer->latest_checkpoint();
  DOCTEST_REQUIRE(latest);
  DOCTEST_CHECK(latest->at<TensorData>("data").bytes() == std::size_t{400} << 20);
}

DOCTEST_TEST_CASE("survivors that do not stop are killed and the run goes on") {
  TestTrainer trainer({.num_workers = 2, .shutdown_deadline = milliseconds(200)});
  const auto results = trainer->run(
      [](const Config& config) {
        const std::filesystem::path folder = config["folder"].get<std::string>();
        if (train::world_rank() == 1 && is_first(folder, "died")) {
          write_fifo(folder / "ready", "x");
          ::raise(SIGKILL);
        }
        if (train::world_rank() == 0 && is_first(folder, "waits")) {
          wait_for_fifo(folder / "ready");
          for (;;) ::pause();
        }
        return "done";
      },
      {.config = {{"folder", (Fifo(trainer.folder() / "ready"), trainer.folder())}}});
  DOCTEST_CHECK(results == std::vector<Json>(2, "done"));
}

DOCTEST_TEST_CASE("shutdown ends a function that never returns within the deadline") {
  TestTrainer trainer({.num_workers = 2, .shutdown_deadline = milliseconds(300)});
  auto iterator = trainer->run_iterator(fn<never_return>);
  iterator.begin();
  std::vector<ProcessWatch> workers;
  for (auto pid : trainer->worker_pids()) workers.emplace_back(pid);
  const auto took = time_of([&] { trainer->shutdown(); });
  DOCTEST_CHECK(took < milliseconds(3000));
  for (const auto& worker : workers) DOCTEST_CHECK(worker.ends_within(milliseconds(0)));
}

DOCTEST_TEST_CASE("shutdown kills a stopped worker at once") {
  TestTrainer trainer({.num_workers = 3, .shutdown_deadline = std::chrono::seconds(60)});
  trainer->start();
  const auto pids = trainer->worker_pids();
  ProcessWatch stopped(pids[1]);
  ::kill(pids[1], SIGSTOP);
  const auto took = time_of([&] { trainer->shutdown(); });
  DOCTEST_CHECK(took < std::chrono::seconds(15));
  DOCTEST_CHECK(stopped.ends_within(milliseconds(0)));
  DOCTEST_CHECK(process_tree(::getpid()).size() == 2);
}

DOCTEST_TEST_CASE("a worker that is stopped while it shuts down is killed") {
  TestTrainer trainer({.num_workers = 2, .shutdown_deadline = std::chrono::seconds(60)});
  Fifo leaving(trainer.folder() / "leaving");
  struct SlowEnd {
    explicit SlowEnd(std::string path) : path_(std::move(path)) {}
    ~SlowEnd() {
      if (train::world_rank() != 1) return;
      write_fifo(path_, "x");
      for (;;) ::pause();
    }
    std::string path_;
  };
  trainer->start<SlowEnd>(leaving.path().string());
  const auto pid = trainer->worker_pids()[1];
  std::thread stopper([&] {
    leaving.read();
    ::kill(pid, SIGSTOP);
  });
  const auto took = time_of([&] { trainer->shutdown(); });
  stopper.join();
  DOCTEST_CHECK(took < std::chrono::seconds(24));
}

DOCTEST_TEST_CASE("a thread rank that does not stop is an error that names it") {
  TestTrainer trainer({.num_workers = 3, .placement = Placement::thread, .shutdown_deadline = milliseconds(3000)});
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [](const auto&, const ResultInfo& info) { info.stop(); };
  const auto error = error_of([&] { trainer->run(fn<stick>, {.callbacks = {callback}}); });
  DOCTEST_CHECK(error.code == ErrorCode::deadline);
  DOCTEST_CHECK(error.rank == 1);
  DOCTEST_CHECK(error.says("thread rank 1 did not stop within 3000 ms"));
  const auto next = error_of([&] { trainer->run(fn<rank>); });
  DOCTEST_CHECK(next.code == ErrorCode::invalid_state);
  DOCTEST_CHECK(next.rank == 1);
  const auto shutdown = error_of([&] { trainer->shutdown(); });
  DOCTEST_CHECK(shutdown.code == ErrorCode::deadline);
  DOCTEST_CHECK(shutdown.says("thread rank 1"));
  free_stuck_threads();
  DOCTEST_CHECK(Json(trainer->run(fn<rank>)).dump() == "[0,1,2]");  // started anew
}

DOCTEST_TEST_CASE("a thread rank that ended after its deadline is not named at shutdown") {
  TestTrainer trainer({.num_workers = 2, .placement = Placement::thread, .shutdown_deadline = std::chrono::seconds(3)});
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [](const auto&, const ResultInfo& info) { info.stop(); };
  DOCTEST_CHECK(error_of([&] { trainer->run(fn<stick>, {.callbacks = {callback}}); }).code == ErrorCode::deadline);
  free_stuck_threads();
  DOCTEST_CHECK_NOTHROW(trainer->shutdown());
}

DOCTEST_TEST_CASE("shutdown names a thread rank that is stuck in a run") {
  TestTrainer trainer({.num_workers = 2, .placement = Placement::thread, .shutdown_deadline = milliseconds(3000)});
  auto iterator = trainer->run_iterator(fn<stick>);
  iterator.begin();
  const auto error = error_of([&] { trainer->shutdown(); });
  DOCTEST_CHECK(error.code == ErrorCode::deadline);
  DOCTEST_CHECK(error.rank == 1);
  DOCTEST_CHECK(error.says("thread rank 1"));
  free_stuck_threads();
}

}  // namespace troupe::test
