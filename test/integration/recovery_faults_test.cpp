// SPDX-License-Identifier: Apache-2.0
// Real signals at random times: whatever dies, and whenever, the run ends with the result of one without faults, and
// every round is shown once. A failure shows its seed; TROUPE_SEED plays it again.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include "actors/node/node.hpp"
#include "test/integration/steady_training.hpp"
#include "test/integration/support.hpp"
#include "test/support/dice.hpp"

namespace troupe::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int rounds = steady_rounds;

/// Worker processes of this program, also those that are just starting.
std::vector<pid_t> workers_now() {
  const auto server = node::Node::instance().fork_server_pid();
  if (server <= 1) return {};
  auto tree = process_tree(server);
  std::erase(tree, server);
  return tree;
}

/// Says when a run has made progress.
class Progress {
public:
  void made() {
    std::lock_guard lock(mutex_);
    made_ = true;
    changed_.notify_all();
  }
  void end() {
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  /// Waits for progress since the last call; false at the end.
  bool wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return made_ || over_; });
    made_ = false;
    return !over_;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool made_ = false;
  bool over_ = false;
};

struct Plan {
  int workers = 2;
  int attacks = 3;
  int floats = 10;  ///< in a checkpoint
  std::string backend = {};
};

void check_rounds(const Recorder& recorder) {
  // Each once and in order; only an attempt from before the first checkpoint begins anew.
  std::int64_t last = 0;
  int attempt = 1;
  for (const auto& info : recorder.infos) {
    const bool anew = info.round == 1 && info.attempt > attempt;
    DOCTEST_CHECK((info.round == last + 1 || anew));
    last = info.round;
    attempt = info.attempt;
  }
  DOCTEST_CHECK(last == rounds);
}

/// Plays `attack` on the training again and again: each time a moment after it has made progress.
void train_under(const Plan& plan, const std::function<void(Trainer&, Dice&)>& attack) {
  const auto seed = any_seed();
  DOCTEST_MESSAGE("seed ", seed);
  DOCTEST_CAPTURE(seed);
  TestTrainer trainer({.backend = plan.backend,
                       .num_workers = plan.workers,
                       .max_retries = -1,
                       .retry_policy = {.crash_loop_restarts = 1000, .restarts_without_progress = -1}});
  Progress progress;
  auto recorder = std::make_shared<Recorder>();
  auto watcher = std::make_shared<FunctionCallback>();
  watcher->on_result = [&](const auto&, const auto&) { progress.made(); };
  std::thread attacker([&] {
    Dice dice(seed);
    for (int i = 0; i < plan.attacks && progress.wait(); ++i) {
      std::this_thread::sleep_for(microseconds(dice.below(40'000)));
      attack(*trainer, dice);
    }
  });
  std::vector<Json> results;
  std::string failure;
  try {
    results = trainer->run(fn<train_steadily>, {.config = {{"floats", plan.floats}}, .callbacks = {recorder, watcher}});
  } catch (const Error& error) {
    failure = error.what();
  }
  progress.end();
  attacker.join();
  DOCTEST_CHECK_MESSAGE(failure.empty(), failure);
  DOCTEST_REQUIRE(results.size() == static_cast<std::size_t>(plan.workers));
  for (int rank = 0; rank < plan.workers; ++rank)
    DOCTEST_CHECK(results[static_cast<std::size_t>(rank)].get<std::uint64_t>() == steady_result(rank));
  check_rounds(*recorder);
  const auto story = Json::parse(read_file(trainer->latest_run_dir() / "run.json"));
  // Others than restarts are about a worker that died too often while it started: it is waited for.
  const auto& decisions = story["decisions"];
  const auto restarts =
      std::count_if(decisions.begin(), decisions.end(), [](const Json& made) { return made["in_place"] == false; });
  DOCTEST_CHECK(story["outcome"]["attempts"] == restarts + 1);
  DOCTEST_CHECK(restarts > 0);
}

/// Nothing happens if there is no such process just now.
void kill_process(pid_t pid) {
  if (pid > 1) ::kill(pid, SIGKILL);
}

void kill_rank(Trainer& trainer, int rank) {
  kill_process(trainer.status().workers.at(static_cast<std::size_t>(rank)).pid);
}

}  // namespace

DOCTEST_TEST_CASE("workers that die at random times of a start are replaced") {
  const auto seed = any_seed();
  DOCTEST_MESSAGE("seed ", seed);
  DOCTEST_CAPTURE(seed);
  Dice dice(seed);
  std::atomic<int> killed = 0;
  for (int start = 0; start < 8 || (killed == 0 && start < 1000); ++start) {
    TestTrainer trainer({.num_workers = 3});
    std::atomic<bool> up = false;
    const auto pause = microseconds(dice.below(30'000));
    const auto victim = dice.below(1000);
    std::thread attacker([&] {
      std::this_thread::sleep_for(pause);
      const auto workers = workers_now();
      if (up || workers.empty()) return;
      ::kill(workers[static_cast<std::size_t>(victim) % workers.size()], SIGKILL);
      killed += 1;
    });
    trainer->start();  // one death is no reason to fail
    up = true;
    attacker.join();
    DOCTEST_CHECK(trainer->run(fn<train_steadily>, {.config = {{"floats", 10}}}).size() == 3);
  }
  DOCTEST_CHECK(killed > 0);
}

DOCTEST_TEST_CASE("one rank after the other dies at random times") {
  train_under({.workers = 3, .attacks = 4}, [](Trainer& trainer, Dice& dice) { kill_rank(trainer, dice.below(3)); });
}

DOCTEST_TEST_CASE("rank 0 dies at random times") {
  train_under({}, [](Trainer& trainer, Dice&) { kill_rank(trainer, 0); });
}

DOCTEST_TEST_CASE("two ranks die at once") {
  train_under({.workers = 3}, [](Trainer& trainer, Dice& dice) {
    const int spared = dice.below(3);
    for (int rank = 0; rank < 3; ++rank)
      if (rank != spared) kill_rank(trainer, rank);
  });
}

DOCTEST_TEST_CASE("workers die while large checkpoints are written") {
  train_under({.attacks = 4, .floats = 500'000},
              [](Trainer& trainer, Dice& dice) { kill_rank(trainer, dice.below(2)); });
}

DOCTEST_TEST_CASE("workers die during recovery while they start and while their group forms") {
  train_under({.attacks = 4, .backend = "meeting"}, [](Trainer& trainer, Dice& dice) {
    kill_rank(trainer, dice.below(2));
    // Whoever is there a moment later dies too, wherever it is just then. (A worker may die twice before it is up.)
    for (int i = 0; i < 2; ++i) {
      std::this_thread::sleep_for(microseconds(dice.below(30'000)));
      const auto workers = workers_now();
      if (workers.empty()) continue;
      kill_process(workers[static_cast<std::size_t>(dice.below(static_cast<int>(workers.size())))]);
    }
  });
}

DOCTEST_TEST_CASE("the fork server dies at random times") {
  train_under({.attacks = 2}, [](Trainer&, Dice&) { kill_process(node::Node::instance().fork_server_pid()); });
}

DOCTEST_TEST_CASE("a program that is killed again and again goes on with its run each time") {
  const auto seed = any_seed();
  DOCTEST_MESSAGE("seed ", seed);
  DOCTEST_CAPTURE(seed);
  Dice dice(seed);
  const TempFolder folder;
  const std::vector<std::string> environment = {"TMPDIR=" + folder.path().string()};
  for (int i = 0; i < 4; ++i) {
    Program program("steady", folder.path().string(), environment);
    // Every other time it dies while it recovers.
    if (i % 2 == 0) {
      std::vector<ProcessWatch> tree;
      std::istringstream pids(program.read_line());
      for (pid_t pid = 0; pids >> pid;) tree.emplace_back(pid);
      std::this_thread::sleep_for(microseconds(dice.below(40'000)));
      program.signal(SIGKILL);
      for (const auto& process : tree) DOCTEST_CHECK(process.ends_within(patience));
    } else {
      std::this_thread::sleep_for(microseconds(dice.below(100'000)));
      program.signal(SIGKILL);
    }
    program.wait();
  }
  Program last("steady", folder.path().string(), environment);
  std::string line;
  for (auto next = last.read_line(); !next.empty(); next = last.read_line()) line = next;
  DOCTEST_CHECK(last.wait_text() == "exit 0");
  const auto result = Json::parse(line);
  DOCTEST_CHECK(result["results"][0].get<std::uint64_t>() == steady_result(0));
  DOCTEST_CHECK(result["results"][1].get<std::uint64_t>() == steady_result(1));
  // One run, driven by programs whose generations rise.
  DOCTEST_CHECK(result["runs"] == 1);
  DOCTEST_CHECK(result["epoch"].get<int>() >= 3);
  DOCTEST_CHECK(result["epoch"].get<int>() <= 5);
  DOCTEST_CHECK(result["rounds_in_order"] == true);
}

}  // namespace troupe::test
