// SPDX-License-Identifier: Apache-2.0
// Training in place under real signals at random times: whoever is hit, and whenever, the run ends with the bits of one
// that nobody disturbed. A failure shows its seed; TROUPE_SEED plays it again.
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "actors/node/node.hpp"
#include "test/support/dice.hpp"
#include "test/torch/live_training.hpp"

namespace troupe::test {
namespace {

using std::chrono::microseconds;

void wait_a_while(Dice& dice) { std::this_thread::sleep_for(microseconds(dice.below(20'000))); }

/// Nothing happens if there is no such process just now.
void hit(pid_t pid, int signal = SIGKILL) {
  if (pid > 1) ::kill(pid, signal);
}

void hit_rank(Trainer& trainer, int rank, int signal = SIGKILL) {
  hit(trainer.status().workers.at(static_cast<std::size_t>(rank)).pid, signal);
}

/// Plays `attack` on the training again and again, each time a moment after a round that chance chose.
void train_under(int workers, int attacks, const std::function<void(Trainer&, Dice&)>& attack) {
  const auto seed = any_seed();
  DOCTEST_MESSAGE("seed ", seed);
  DOCTEST_CAPTURE(seed);
  Dice dice(seed);
  // Checkpoints are for those moments in which nobody is left who has the state, or who can go on in place.
  const LiveRun run{.workers = workers,
                    .config = {{"step_us", 1000}, {"checkpoints", 5}, {"waits_at", 100}},
                    .num_epochs = 30,
                    .options = {.max_retries = -1,
                                .retry_policy = {.crash_loop_restarts = 1000, .restarts_without_progress = -1},
                                .stopped_grace = std::chrono::milliseconds(0)}};
  int played = 0;
  std::int64_t next = 1 + dice.below(20);
  const auto outcome = train_with(run, [&](Trainer& trainer, const ResultInfo& info) {
    if (played == attacks || info.round < next) return played > 0;
    played += 1;
    next = info.round + 10 + dice.below(20);
    wait_a_while(dice);
    attack(trainer, dice);
    return true;
  });
  check_same(outcome, run);
  DOCTEST_CHECK(played == attacks);
  DOCTEST_CHECK_FALSE(outcome.decisions.empty());
  // Each round once and in order; only an attempt from before the first checkpoint begins anew.
  std::int64_t last = 0;
  int attempt = 1;
  for (const auto& info : outcome.infos) {
    DOCTEST_CHECK((info.round == last + 1 || (info.round == 1 && info.attempt > attempt)));
    last = info.round;
    attempt = info.attempt;
  }
}

}  // namespace

DOCTEST_TEST_CASE("live training survives one rank after the other that dies at a random time") {
  train_under(3, 4, [](Trainer& trainer, Dice& dice) { hit_rank(trainer, dice.below(3)); });
}

DOCTEST_TEST_CASE("live training survives the death of rank 0 at random times") {
  train_under(2, 3, [](Trainer& trainer, Dice&) { hit_rank(trainer, 0); });
}

DOCTEST_TEST_CASE("live training survives two ranks that die at once") {
  train_under(3, 3, [](Trainer& trainer, Dice& dice) {
    const int spared = dice.below(3);
    for (int rank = 0; rank < 3; ++rank)
      if (rank != spared) hit_rank(trainer, rank);
  });
}

DOCTEST_TEST_CASE("live training survives a second death during recovery") {
  train_under(3, 3, [](Trainer& trainer, Dice& dice) {
    hit_rank(trainer, dice.below(3));
    wait_a_while(dice);
    // Whoever is there now, wherever it is just then.
    const auto server = node::Node::instance().fork_server_pid();
    if (server <= 1) return;
    auto workers = process_tree(server);
    workers.erase(workers.begin());
    if (!workers.empty()) hit(workers[static_cast<std::size_t>(dice.below(static_cast<int>(workers.size())))]);
  });
}

DOCTEST_TEST_CASE("live training goes on without a rank that is stopped at a random time") {
  train_under(2, 3, [](Trainer& trainer, Dice& dice) { hit_rank(trainer, dice.below(2), SIGSTOP); });
}

DOCTEST_TEST_CASE("live training survives the death of the fork server") {
  train_under(2, 2, [](Trainer&, Dice&) { hit(node::Node::instance().fork_server_pid()); });
}

}  // namespace troupe::test
