// SPDX-License-Identifier: Apache-2.0
// Workers that live but do not do their part: stopped, silent, stuck, slow.
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "runtime/session/session.hpp"
#include "test/integration/support.hpp"

using namespace std::chrono_literals;

namespace troupe::test {
namespace {

std::filesystem::path folder_of(const Config& config) { return config["folder"].get<std::string>(); }

/// Runs `act(pid of rank 1)` at the first round of the first attempt.
std::shared_ptr<FunctionCallback> at_first_round(std::function<void(pid_t)> act) {
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [act = std::move(act)](const std::vector<Json>& results, const ResultInfo& info) {
    if (info.attempt == 1 && info.round == 1) act(results.at(1).at("pid").get<pid_t>());
  };
  return callback;
}

/// In the first attempt rank 1 saves a part of a checkpoint that the others have no part of, for ever.
Json stop_once(const Config& config) {
  // Asked before the report, which brings the stop about.
  const bool first_attempt = is_first(folder_of(config), "began_" + std::to_string(train::world_rank()));
  train::report({{"pid", ::getpid()}});
  if (first_attempt) {
    while (train::world_rank() == 1) train::save_checkpoint({{"zombie", true}}, {.sharded = true});
    train::wait_for_stop();
  }
  train::save_checkpoint({{"zombie", false}}, {.sharded = true});
  return train::world_rank();
}

/// Every thread of this process but the caller's and the first one hangs in a signal handler.
void hang_other_threads() {
  struct sigaction action{};
  action.sa_handler = [](int) {
    for (;;) ::pause();
  };
  ::sigaction(SIGUSR1, &action, nullptr);
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const auto id = static_cast<pid_t>(std::stoi(task.path().filename()));
    if (id != self && id != ::getpid()) ::syscall(SYS_tgkill, ::getpid(), id, SIGUSR1);
  }
}

}  // namespace

DOCTEST_TEST_CASE("a worker that stays stopped is replaced, and cannot do anything when it is continued") {
  TestTrainer trainer({.num_workers = 2, .stopped_grace = 50ms});
  std::optional<ProcessWatch> victim;
  pid_t pid = -1;
  const auto callback = at_first_round([&](pid_t given) {
    pid = given;
    victim.emplace(pid);
    ::kill(pid, SIGSTOP);
  });
  const auto results = trainer->run(fn<stop_once>, {.config = {{"folder", trainer.folder()}}, .callbacks = {callback}});
  DOCTEST_CHECK(Json(results).dump() == "[0,1]");
  DOCTEST_REQUIRE(victim);
  ::kill(pid, SIGCONT);
  DOCTEST_CHECK(victim->ends_within(0ms));
  const auto latest = trainer->latest_checkpoint();
  DOCTEST_REQUIRE(latest);
  DOCTEST_CHECK_FALSE(latest->at<bool>("zombie"));
}

DOCTEST_TEST_CASE("the error of a stopped worker names the signal and the grace, which may be zero") {
  for (const auto& [grace, text] : {std::pair{200ms, "stopped by SIGSTOP for 200 ms (stopped_grace)"},
                                    std::pair{0ms, "stopped by SIGSTOP for 0 s (stopped_grace)"}}) {
    TestTrainer trainer({.num_workers = 2, .max_retries = 0, .stopped_grace = grace});
    const auto error = error_of([&] {
      trainer->run(
          [] {
            train::report({{"pid", ::getpid()}});
            train::wait_for_stop();
          },
          {.callbacks = {at_first_round([](pid_t pid) { ::kill(pid, SIGSTOP); })}});
    });
    DOCTEST_CHECK(error.code == ErrorCode::worker_lost);
    DOCTEST_CHECK(error.rank == 1);
    DOCTEST_CHECK_MESSAGE(error.says(text), error.text);
  }
}

DOCTEST_TEST_CASE("a worker that is continued in time goes on") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 0, .stopped_grace = patience});
  const auto results = trainer->run(
      [](const Config& config) {
        train::report({{"pid", ::getpid()}});
        if (train::world_rank() == 1) wait_for_fifo(folder_of(config) / "go");
        return train::world_rank();
      },
      {.config = {{"folder", (Fifo(trainer.folder() / "go"), trainer.folder())}},
       .callbacks = {at_first_round([&](pid_t pid) {
         ::kill(pid, SIGSTOP);
         ::kill(pid, SIGCONT);
         write_fifo(trainer.folder() / "go", "x");
       })}});
  DOCTEST_CHECK(Json(results).dump() == "[0,1]");
}

DOCTEST_TEST_CASE("a worker whose control thread hangs is lost") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 0, .ping_interval = 100ms, .ping_deadline = 3s});
  const auto error = error_of([&] {
    trainer->run([] {
      if (train::world_rank() == 1) hang_other_threads();
      train::wait_for_stop();
    });
  });
  DOCTEST_CHECK(error.code == ErrorCode::worker_lost);
  DOCTEST_CHECK(error.rank == 1);
  DOCTEST_CHECK_MESSAGE(error.says("silent: its control thread did not answer for 3 s (ping_deadline)"), error.text);
}

DOCTEST_TEST_CASE("a rank that is stuck is lost at the deadline, after a warning that shows where all stand") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 0, .progress_deadline = 4s});
  std::optional<Thrown> error;
  std::string log;
  {
    CapturedOutput captured(2);
    error = error_of([&] {
      trainer->run([] {
        train::report({{"x", 1}});
        while (train::world_rank() == 1) ::pause();
        train::wait_for_stop();
      });
    });
    log = captured.text();
  }
  DOCTEST_CHECK(error->code == ErrorCode::worker_lost);
  DOCTEST_CHECK(error->rank == 1);
  DOCTEST_CHECK_MESSAGE(error->says("stuck: no progress for 4 s (progress_deadline), after round 1, in user code"),
                        error->text);
  for (const auto* part : {"no progress for 2 s, half of progress_deadline", "rank 0 after round 1, in wait_for_stop()",
                           "rank 1 after round 1, in user code"})
    DOCTEST_CHECK_MESSAGE(log.find(part) != std::string::npos, log);
}

DOCTEST_TEST_CASE("a step that was made in place is progress") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 0, .progress_deadline = 4s});
  const auto results = trainer->run([] {
    for (int step = 0; step < 60; ++step) {
      std::this_thread::sleep_for(100ms);
      detail::Session::require("test")->step_committed(step);
    }
    return train::world_rank();
  });
  DOCTEST_CHECK(Json(results).dump() == "[0,1]");
}

DOCTEST_TEST_CASE("a thread that is stuck ends the run with the reason") {
  TestTrainer trainer(
      {.num_workers = 2, .placement = Placement::thread, .shutdown_deadline = patience, .progress_deadline = 3s});
  const auto error = error_of([&] {
    trainer->run([] {
      train::report({{"x", 1}});
      while (train::world_rank() == 1 && !train::should_stop()) std::this_thread::yield();
      train::wait_for_stop();
    });
  });
  DOCTEST_CHECK(error.code == ErrorCode::deadline);
  DOCTEST_CHECK_MESSAGE(error.says("rank 1 is stuck: no progress for 3 s (progress_deadline)"), error.text);
}

DOCTEST_TEST_CASE("the status shows how much slower a straggler is") {
  TestTrainer trainer({.num_workers = 2, .ping_interval = 50ms});
  auto callback = std::make_shared<FunctionCallback>();
  TrainerStatus seen;
  callback->on_result = [&, found = false](const auto&, const ResultInfo& info) mutable {
    if (found) return;  // rounds that were on their way when the run was stopped
    seen = trainer->status();
    found = seen.workers.at(1).slowdown > 0;
    if (found) info.stop();
  };
  trainer->run(
      [] {
        while (!train::should_stop()) {
          std::this_thread::sleep_for(train::world_rank() == 1 ? 100ms : 2ms);
          train::report({{"x", 1}});
        }
      },
      {.callbacks = {callback}});
  DOCTEST_CHECK(seen.workers.at(0).slowdown == 0);
  DOCTEST_CHECK(seen.workers.at(1).slowdown >= 1.5);
  DOCTEST_CHECK_MESSAGE(seen.to_string().find("round  slowdown\n") != std::string::npos, seen.to_string());
}

DOCTEST_TEST_CASE("a straggler is told of, and replaced if asked, which costs no retry") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 0, .ping_interval = 50ms, .replace_stragglers = true});
  std::vector<Json> results;
  std::string log;
  {
    CapturedOutput captured(2);
    results = trainer->run(
        [](const Config& config) {
          // Work that takes fifty times as long on rank 1, until that is noticed.
          const bool first_attempt = is_first(folder_of(config), "began_" + std::to_string(train::world_rank()));
          while (first_attempt) {
            std::this_thread::sleep_for(train::world_rank() == 1 ? 100ms : 2ms);
            train::report({{"x", 1}});
          }
          return train::world_rank();
        },
        {.config = {{"folder", trainer.folder()}}});
    log = captured.text();
  }
  DOCTEST_CHECK(Json(results).dump() == "[0,1]");
  DOCTEST_CHECK_MESSAGE(log.find("rank 1 is slow: it computes") != std::string::npos, log);
  DOCTEST_CHECK_MESSAGE(log.find("replaced as a straggler") != std::string::npos, log);
}

}  // namespace troupe::test
