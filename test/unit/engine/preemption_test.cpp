// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "test/unit/engine/actions.hpp"

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

/// Three workers that run.
struct Running {
  explicit Running(bool can_kill = true) : machine({.world_size = 3, .can_kill = can_kill}) {
    machine.start(now);
    for (int rank = 0; rank < 3; ++rank) {
      machine.registered(rank);
      machine.ready(rank, now);
    }
    machine.begin_attempt(now);
  }
  GroupActions finish(int rank, bool saw_notice) {
    return machine.done(rank, RankEnd::returned, std::nullopt, now, saw_notice);
  }

  Time now = Time{} + 1h;
  GroupMachine machine;
};

}  // namespace

DOCTEST_TEST_CASE("all ranks are told of a preemption and at the deadline the worker is ended") {
  Running group;
  const auto told = group.machine.preempt(1, group.now + 10s, group.now);
  DOCTEST_CHECK(ranks_of<SendNotice>(told) == Ranks{0, 1, 2});
  DOCTEST_CHECK(find<SendNotice>(told)->preempted == 1);
  DOCTEST_CHECK_FALSE(find<KillWorker>(told));
  DOCTEST_CHECK(group.machine.deadline() == group.now + 10s);
  const auto taken = group.machine.tick(group.now + 10s);
  DOCTEST_CHECK(ranks_of<KillWorker>(taken) == Ranks{1});
  DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.lost(1, "killed by SIGKILL", {}, group.now)) == Ranks{0, 2});
  group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
  const auto over = group.machine.done(2, RankEnd::stopped, std::nullopt, group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(over));
  DOCTEST_CHECK(find<AttemptEnded>(over)->failure->kind == FailureKind::preempted);
  DOCTEST_CHECK(find<AttemptEnded>(over)->failure->rank == 1);
}

DOCTEST_TEST_CASE("a worker that leaves its function after the notice is replaced while the others still save") {
  Running group;
  group.machine.preempt(1, group.now + 10s, group.now);
  const auto left = group.finish(1, true);
  DOCTEST_CHECK(ranks_of<KillWorker>(left) == Ranks{1});
  DOCTEST_CHECK(ranks_of<SendHalt>(left).empty());
  const auto lost = group.machine.lost(1, "killed by SIGKILL", {}, group.now);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(lost) == Ranks{1});
  DOCTEST_CHECK(ranks_of<SendHalt>(lost).empty());
  group.finish(0, true);
  const auto over = group.finish(2, true);
  DOCTEST_REQUIRE(find<AttemptEnded>(over));
  DOCTEST_CHECK(find<AttemptEnded>(over)->failure->kind == FailureKind::preempted);
}

DOCTEST_TEST_CASE("ranks that overstay the deadline of another's preemption are halted") {
  Running group;
  group.machine.preempt(1, group.now + 10s, group.now);
  group.finish(0, true);
  group.finish(1, true);
  group.machine.lost(1, "killed by SIGKILL", {}, group.now);
  DOCTEST_CHECK(group.machine.deadline() == group.now + 10s);
  const auto late = group.machine.tick(group.now + 10s);
  DOCTEST_CHECK(ranks_of<SendHalt>(late) == Ranks{2});
}

DOCTEST_TEST_CASE("a preempted worker that has returned without a look at the notice leaves the others alone") {
  Running group;
  group.machine.preempt(1, group.now + 10s, group.now);
  group.finish(1, false);
  const auto taken = group.machine.tick(group.now + 10s);
  DOCTEST_CHECK(ranks_of<KillWorker>(taken) == Ranks{1});
  DOCTEST_CHECK(ranks_of<SendHalt>(taken).empty());
}

DOCTEST_TEST_CASE("a run that ends without a look at the notice has ended well") {
  Running group;
  group.machine.preempt(1, group.now + 10s, group.now);
  group.finish(0, false);
  group.finish(1, false);
  const auto over = group.finish(2, false);
  DOCTEST_REQUIRE(find<AttemptEnded>(over));
  DOCTEST_CHECK_FALSE(find<AttemptEnded>(over)->failure);
  // The worker goes all the same.
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.tick(group.now + 10s)) == Ranks{1});
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.lost(1, "killed", {}, group.now)) == Ranks{1});
}

DOCTEST_TEST_CASE("an idle worker is replaced at once") {
  Running group;
  for (int rank = 0; rank < 3; ++rank) group.finish(rank, false);
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.preempt(2, group.now + 10s, group.now)) == Ranks{2});
  DOCTEST_CHECK_FALSE(group.machine.deadline());
}

DOCTEST_TEST_CASE("a worker that dies before its deadline was preempted") {
  Running group;
  group.machine.preempt(0, group.now + 10s, group.now);
  group.machine.lost(0, "killed by SIGKILL", {}, group.now);
  group.machine.done(1, RankEnd::stopped, std::nullopt, group.now);
  const auto over = group.machine.done(2, RankEnd::stopped, std::nullopt, group.now);
  DOCTEST_CHECK(find<AttemptEnded>(over)->failure->kind == FailureKind::preempted);
}

DOCTEST_TEST_CASE("a thread that is preempted is halted with the others and used again") {
  Running group(false);
  group.machine.preempt(1, group.now + 10s, group.now);
  const auto taken = group.machine.tick(group.now + 10s);
  DOCTEST_CHECK(ranks_of<SendHalt>(taken) == Ranks{0, 1, 2});
  DOCTEST_CHECK_FALSE(find<KillWorker>(taken));
  group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
  group.machine.done(1, RankEnd::stopped, std::nullopt, group.now);
  const auto over = group.machine.done(2, RankEnd::stopped, std::nullopt, group.now);
  DOCTEST_CHECK(find<AttemptEnded>(over)->failure->kind == FailureKind::preempted);
  DOCTEST_CHECK(ranks_of<SendNotice>(group.machine.begin_attempt(group.now)).empty());
}

DOCTEST_TEST_CASE("a function that goes on in place does so after a preemption") {
  Running group;
  for (int rank = 0; rank < 3; ++rank) group.machine.live(rank, true, group.now);
  group.machine.preempt(1, group.now + 1s, group.now);
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.tick(group.now + 1s)) == Ranks{1});
  const auto lost = group.machine.lost(1, "killed by SIGKILL", {}, group.now);
  DOCTEST_REQUIRE(find<AskToGoOn>(lost));
  DOCTEST_CHECK(find<AskToGoOn>(lost)->failure.kind == FailureKind::preempted);
  DOCTEST_CHECK(ranks_of<SendHalt>(lost).empty());
}

DOCTEST_TEST_CASE("a notice that nobody could answer in time is not given") {
  Running group;
  for (int rank = 0; rank < 3; ++rank) group.machine.live(rank, true, group.now);
  const auto taken = group.machine.preempt(1, group.now, group.now);
  DOCTEST_CHECK(ranks_of<SendNotice>(taken).empty());
  DOCTEST_CHECK(ranks_of<KillWorker>(taken) == Ranks{1});
  DOCTEST_CHECK(find<AskToGoOn>(group.machine.lost(1, "killed by SIGKILL", {}, group.now)));
}

DOCTEST_TEST_CASE("that a newcomer is taken away on its way to the others concerns it alone") {
  const Time now = Time{} + 1h;
  GroupMachine machine({.world_size = 2, .min_workers = 1, .max_workers = 3});
  machine.start(now);
  for (int rank : {0, 1}) machine.ready(rank, now);
  for (int rank : ranks_of<SendRun>(machine.begin_attempt(now))) machine.live(rank, true, now);
  machine.resize(3, now);
  DOCTEST_REQUIRE(ranks_of<SendRun>(machine.ready(2, now)) == Ranks{2});
  DOCTEST_CHECK(ranks_of<SendNotice>(machine.preempt(2, now + 10s, now)) == Ranks{2});
  DOCTEST_CHECK(ranks_of<SendHalt>(machine.done(2, RankEnd::returned, std::nullopt, now, true)).empty());
  machine.done(0, RankEnd::returned, std::nullopt, now, true);
  const auto over = machine.done(1, RankEnd::returned, std::nullopt, now, true);
  DOCTEST_REQUIRE(find<AttemptEnded>(over));
  DOCTEST_CHECK_FALSE(find<AttemptEnded>(over)->failure);
}
