// SPDX-License-Identifier: Apache-2.0
// Events of a group that come in an inconvenient order.
#include <doctest/doctest.h>

#include "test/unit/engine/actions.hpp"

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

/// Three workers that run, in place if they are `live`.
struct Group {
  explicit Group(bool live, GroupLimits limits = {.world_size = 3}) : machine(limits) {
    machine.start(now);
    for (int rank = 0; rank < limits.world_size; ++rank) bring_up(rank);
    for (int rank : ranks_of<SendRun>(machine.begin_attempt(now))) machine.live(rank, live, now);
  }
  GroupActions bring_up(int rank) {
    machine.registered(rank);
    return machine.ready(rank, now);
  }
  GroupActions lose(int rank, const char* cause = "killed by SIGKILL") { return machine.lost(rank, cause, {}, now); }
  GroupActions hold(int rank) { return machine.held(rank, "a peer is gone", false, now); }
  GroupActions stop(int rank) { return machine.done(rank, RankEnd::stopped, std::nullopt, now); }
  GroupActions wait(Duration time) {
    now += time;
    return machine.tick(now);
  }
  /// Rank 1 is lost and replaced; all but the newcomer wait.
  void lose_and_replace() {
    lose(1);
    machine.go_on(now);
    hold(0);
    hold(2);
    bring_up(1);
  }

  Time now = Time{} + 1h;
  GroupMachine machine;
};

}  // namespace

DOCTEST_TEST_CASE("a worker that takes long to die is lost, not ended by us") {
  for (const bool live : {false, true}) {
    DOCTEST_CAPTURE(live);
    Group group(live);
    group.machine.disconnected(1, group.now);
    for (int rank : {0, 2}) live ? group.hold(rank) : group.stop(rank);
    group.wait(2min);  // past every deadline of the others
    const auto lost = group.lose(1);
    if (live) {
      DOCTEST_REQUIRE(find<AskToGoOn>(lost));
      DOCTEST_CHECK(find<AskToGoOn>(lost)->failure.kind == FailureKind::worker_lost);
    } else {
      DOCTEST_REQUIRE(find<AttemptEnded>(lost));
      DOCTEST_REQUIRE(find<AttemptEnded>(lost)->failure);
      DOCTEST_CHECK(find<AttemptEnded>(lost)->failure->kind == FailureKind::worker_lost);
    }
  }
}

DOCTEST_TEST_CASE("a loss that is told after another rank has left its function is no change of size") {
  for (const bool given_up : {false, true})
    for (const auto end : {RankEnd::stopped, RankEnd::returned}) {
      DOCTEST_CAPTURE(given_up);
      Group group(true);
      given_up ? group.machine.give_up(1, "silent", group.now) : group.machine.disconnected(1, group.now);
      group.machine.done(0, end, std::nullopt, group.now);
      group.stop(2);
      const auto over = group.lose(1, "killed by SIGSEGV");
      DOCTEST_REQUIRE(find<AttemptEnded>(over));
      DOCTEST_REQUIRE(find<AttemptEnded>(over)->failure);
      DOCTEST_CHECK(find<AttemptEnded>(over)->failure->kind == FailureKind::worker_lost);
      DOCTEST_CHECK(find<AttemptEnded>(over)->failure->rank == 1);
      DOCTEST_CHECK(find<AttemptEnded>(over)->failure->text == "killed by SIGSEGV");
    }
}

DOCTEST_TEST_CASE("a rank that returns while another one has lost its group ends no attempt well") {
  Group group(true);
  group.hold(0);
  group.machine.done(1, RankEnd::returned, std::nullopt, group.now);
  group.stop(0);
  const auto over = group.stop(2);
  DOCTEST_REQUIRE(find<AttemptEnded>(over));
  DOCTEST_REQUIRE(find<AttemptEnded>(over)->failure);
  DOCTEST_CHECK(find<AttemptEnded>(over)->failure->kind == FailureKind::worker_lost);
}

DOCTEST_TEST_CASE("a loss while a change of size ends the attempt is a loss") {
  Group group(false, {.world_size = 3, .min_workers = 1, .max_workers = 3});
  group.machine.resize(2, group.now);
  for (int rank : {0, 1}) group.stop(rank);
  const auto over = group.lose(2);
  DOCTEST_REQUIRE(find<AttemptEnded>(over));
  DOCTEST_CHECK(find<AttemptEnded>(over)->failure->kind == FailureKind::worker_lost);
}

DOCTEST_TEST_CASE("a second loss after the permission to go on is an incident of its own") {
  Group group(true);
  group.lose_and_replace();
  const auto asked = group.lose(2, "killed by SIGSEGV");
  DOCTEST_REQUIRE(find<AskToGoOn>(asked));
  DOCTEST_CHECK(find<AskToGoOn>(asked)->failure.rank == 2);
  DOCTEST_CHECK(find<AskToGoOn>(asked)->failure.text == "killed by SIGSEGV");
}

DOCTEST_TEST_CASE("losses before the permission to go on belong to the first") {
  Group group(true);
  group.lose(1);
  DOCTEST_CHECK_FALSE(find<AskToGoOn>(group.lose(2, "killed by SIGSEGV")));
}

DOCTEST_TEST_CASE("a newcomer that waits for the others has all the time it needs") {
  Group group(true);
  group.lose(1);
  group.hold(0);
  group.hold(2);
  group.bring_up(1);
  group.hold(1);
  DOCTEST_CHECK(group.wait(1h).empty());  // the answer takes its time
  DOCTEST_CHECK(ranks_of<SendResume>(group.machine.go_on(group.now)) == Ranks{0, 1, 2});
}

DOCTEST_TEST_CASE("a newcomer whose function does not come to its loop sends all back to a checkpoint") {
  Group group(true);
  group.lose_and_replace();
  const auto late = group.wait(61s);
  DOCTEST_CHECK(ranks_of<SendHalt>(late) == Ranks{0, 1, 2});
  group.stop(0);
  group.stop(1);
  const auto over = group.stop(2);
  DOCTEST_REQUIRE(find<AttemptEnded>(over));
  DOCTEST_CHECK(find<AttemptEnded>(over)->failure->kind == FailureKind::worker_lost);
  DOCTEST_CHECK(find<AttemptEnded>(over)->failure->text.find("worker_start_deadline") != std::string::npos);
  // It is a worker like the others in the next attempt.
  DOCTEST_CHECK(ranks_of<SendRun>(group.machine.begin_attempt(group.now)) == Ranks{0, 1, 2});
  DOCTEST_CHECK(group.wait(1h).empty());
}

DOCTEST_TEST_CASE("a step that computes on and on is given up, but never the last one that holds the state") {
  const GroupLimits limits{.world_size = 3, .rejoin_deadline = 20s};
  Group some(true, limits);
  some.lose(1);
  some.machine.go_on(some.now);
  some.hold(0);
  DOCTEST_CHECK(ranks_of<KillWorker>(some.wait(19s)).empty());
  DOCTEST_CHECK(ranks_of<KillWorker>(some.wait(1s)) == Ranks{2});
  Group all(true, limits);
  all.lose(1);
  all.machine.go_on(all.now);
  const auto late = all.wait(20s);
  DOCTEST_CHECK(ranks_of<KillWorker>(late).empty());
  DOCTEST_CHECK(ranks_of<SendHalt>(late) == Ranks{0, 2});
}

DOCTEST_TEST_CASE("a worker that was told to leave goes at its deadline, and its end disturbs nobody") {
  Group group(true, {.world_size = 3, .min_workers = 1, .max_workers = 3});
  DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.resize(2, group.now)) == Ranks{2});
  group.hold(0);
  DOCTEST_CHECK(ranks_of<SendResume>(group.hold(1)) == Ranks{0, 1});
  DOCTEST_CHECK(ranks_of<KillWorker>(group.wait(5s)) == Ranks{2});
  DOCTEST_CHECK(group.machine.disconnected(2, group.now).empty());
  DOCTEST_CHECK(group.lose(2).empty());
}

DOCTEST_TEST_CASE("a worker that is taken away while it forms frees those who form with it") {
  GroupMachine machine({.world_size = 2, .forms_group = true});
  const auto now = Time{} + 1h;
  machine.start(now);
  for (int rank : {0, 1}) {
    machine.registered(rank);
    machine.ready(rank, now);
  }
  const auto taken = machine.preempt(1, now + 1s, now);
  DOCTEST_CHECK(ranks_of<KillWorker>(taken) == Ranks{1});
  DOCTEST_CHECK(find<SendAbort>(taken));
}

DOCTEST_TEST_CASE("a newcomer that cannot be set up, or does not come up, disturbs nobody and is tried again") {
  for (const bool late : {false, true}) {
    DOCTEST_CAPTURE(late);
    Group group(true, {.world_size = 2, .min_workers = 1, .max_workers = 3});
    DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.resize(3, group.now)) == Ranks{2});
    group.machine.registered(2);
    const auto gone =
        late ? group.wait(61s)
             : group.machine.setup_failed({FailureKind::fatal, troupe::ErrorCode::user_code, 2, "no"}, group.now);
    DOCTEST_CHECK(ranks_of<SendLeave>(gone) == Ranks{2});
    DOCTEST_CHECK_FALSE(find<AttemptEnded>(gone));
    DOCTEST_CHECK(ranks_of<SendAbort>(gone).empty());
    group.lose(2);
    DOCTEST_CHECK(ranks_of<LaunchWorker>(group.wait(1s)) == Ranks{2});
  }
}

DOCTEST_TEST_CASE("a newcomer that hangs is told to leave once, and ended when it does not") {
  Group group(true, {.world_size = 2, .min_workers = 1, .max_workers = 3});
  group.machine.resize(3, group.now);
  group.machine.registered(2);
  DOCTEST_CHECK(ranks_of<SendLeave>(group.wait(61s)) == Ranks{2});
  DOCTEST_REQUIRE(group.machine.deadline());
  DOCTEST_CHECK(*group.machine.deadline() > group.now);
  const auto late = group.wait(5s);
  DOCTEST_CHECK(ranks_of<KillWorker>(late) == Ranks{2});
  DOCTEST_CHECK(ranks_of<SendLeave>(late).empty());
}

DOCTEST_TEST_CASE("who asks for more workers while others still leave gets them when their places are free") {
  Group group(true, {.world_size = 2, .min_workers = 1, .max_workers = 2});
  group.machine.resize(1, group.now);
  DOCTEST_CHECK(ranks_of<SendResume>(group.hold(0)) == Ranks{0});
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.resize(2, group.now)).empty());
  group.stop(1);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(1)) == Ranks{1});
}

DOCTEST_TEST_CASE("an exception that all ranks throw in a step is one incident") {
  Group group(true);
  const auto asked = group.machine.held(0, "bad batch", true, group.now, 4);
  DOCTEST_REQUIRE(find<AskToGoOn>(asked));
  group.machine.go_on(group.now);
  DOCTEST_CHECK_FALSE(find<AskToGoOn>(group.machine.held(1, "bad batch", true, group.now, 4)));
  const auto last = group.machine.held(2, "bad batch", true, group.now, 4);
  DOCTEST_CHECK_FALSE(find<AskToGoOn>(last));
  DOCTEST_CHECK(ranks_of<SendResume>(last) == Ranks{0, 1, 2});
}

DOCTEST_TEST_CASE(
    "a replacement that hangs in its setup is done without or tried again and one that throws is done without") {
  for (const bool hangs : {true, false})
    for (const bool elastic : {true, false})
      for (const bool in_place : {true, false}) {
        DOCTEST_CAPTURE(hangs);
        DOCTEST_CAPTURE(elastic);
        DOCTEST_CAPTURE(in_place);
        Group group(in_place, {.world_size = 3, .min_workers = elastic ? 1 : 3, .max_workers = 3});
        group.lose(1);
        group.machine.go_on(group.now);
        for (int rank : {0, 2}) in_place ? group.hold(rank) : group.stop(rank);
        if (!in_place) group.machine.begin_attempt(group.now);
        group.machine.registered(1);
        const auto failed =
            hangs ? group.wait(60s)
                  : group.machine.setup_failed({FailureKind::fatal, troupe::ErrorCode::user_code, 1, "no"}, group.now);
        DOCTEST_CHECK(ranks_of<KillWorker>(failed) == Ranks{1});
        if (!hangs && !elastic) {  // what it threw is its own matter, and ends the run
          DOCTEST_CHECK((find<AttemptEnded>(failed) || find<SendHalt>(failed)));
          continue;
        }
        DOCTEST_CHECK_FALSE(find<AttemptEnded>(failed));
        const auto goes_on = in_place ? ranks_of<SendResume>(failed) : ranks_of<SendRun>(failed);
        if (elastic) {
          DOCTEST_CHECK(goes_on == Ranks{0, 2});
          continue;
        }
        DOCTEST_CHECK(goes_on.empty());
        DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(1)).empty());
        DOCTEST_CHECK(ranks_of<LaunchWorker>(group.wait(1s)) == Ranks{1});
        const auto up = group.bring_up(1);
        DOCTEST_CHECK((in_place ? ranks_of<SendResume>(group.hold(1)) : ranks_of<SendRun>(up)) == Ranks{0, 1, 2});
      }
}

DOCTEST_TEST_CASE("a group that comes to its end before it has grown ends there") {
  Group group(true, {.world_size = 2, .min_workers = 1, .max_workers = 3});
  group.machine.resize(3, group.now);
  group.bring_up(2);
  DOCTEST_CHECK(ranks_of<SendAbort>(group.hold(2)) == Ranks{0, 1});
  DOCTEST_CHECK(group.machine.done(0, RankEnd::returned, std::nullopt, group.now).empty());
  const auto last = group.machine.done(1, RankEnd::returned, std::nullopt, group.now);
  DOCTEST_REQUIRE(find<SendHalt>(last));
  DOCTEST_CHECK(find<SendHalt>(last)->rank == 2);
  DOCTEST_CHECK(group.machine.members() == Ranks{0, 1});
  const auto over = group.stop(2);
  DOCTEST_REQUIRE(find<AttemptEnded>(over));
  DOCTEST_CHECK_FALSE(find<AttemptEnded>(over)->failure);
}

DOCTEST_TEST_CASE("a group that comes to its end before it has shrunk ends there") {
  Group group(true, {.world_size = 3, .min_workers = 1, .max_workers = 3});
  group.machine.resize(2, group.now);
  for (int rank : {0, 1}) group.machine.done(rank, RankEnd::returned, std::nullopt, group.now);
  const auto over = group.machine.done(2, RankEnd::returned, std::nullopt, group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(over));
  DOCTEST_CHECK_FALSE(find<AttemptEnded>(over)->failure);
  // One that waits in its step needs the others.
  Group waiting(true, {.world_size = 3, .min_workers = 1, .max_workers = 3});
  waiting.machine.resize(2, waiting.now);
  waiting.machine.done(0, RankEnd::returned, std::nullopt, waiting.now);
  DOCTEST_CHECK(ranks_of<SendHalt>(waiting.hold(1)) == Ranks{1, 2});
}

DOCTEST_TEST_CASE("a function that some have returned from is not run again for a change of size") {
  for (const int size : {2, 4}) {
    DOCTEST_CAPTURE(size);
    Group group(false, {.world_size = 3, .min_workers = 1, .max_workers = 4});
    group.machine.done(0, RankEnd::returned, std::nullopt, group.now);
    DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.resize(size, group.now)).empty());
    if (size == 4) DOCTEST_CHECK(group.bring_up(3).empty());
    group.machine.done(1, RankEnd::returned, std::nullopt, group.now);
    const auto over = group.machine.done(2, RankEnd::returned, std::nullopt, group.now);
    DOCTEST_REQUIRE(find<AttemptEnded>(over));
    DOCTEST_CHECK_FALSE(find<AttemptEnded>(over)->failure);
    DOCTEST_CHECK(ranks_of<SendRun>(group.machine.begin_attempt(group.now)).size() == static_cast<std::size_t>(size));
  }
}

DOCTEST_TEST_CASE("a smaller size lets newcomers go that are still starting") {
  Group group(true, {.world_size = 2, .min_workers = 1, .max_workers = 4});
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.resize(4, group.now)) == Ranks{2, 3});
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.resize(3, group.now)) == Ranks{3});
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.resize(1, group.now)) == Ranks{2});
}

DOCTEST_TEST_CASE("a newcomer that was let go and throws then was let go once") {
  Group group(true, {.world_size = 2, .min_workers = 1, .max_workers = 3});
  group.machine.resize(3, group.now);
  group.machine.registered(2);
  group.machine.resize(2, group.now);
  DOCTEST_CHECK(
      group.machine.setup_failed({FailureKind::fatal, troupe::ErrorCode::user_code, 2, "no"}, group.now).empty());
}

DOCTEST_TEST_CASE("a rank that has returned its result keeps its place when it cannot be replaced") {
  Group group(false, {.world_size = 3, .min_workers = 1, .max_workers = 3});
  group.machine.done(2, RankEnd::returned, std::nullopt, group.now);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(2)) == Ranks{2});
  const auto none = group.machine.launch_failed(
      {FailureKind::fatal, troupe::ErrorCode::start_failed, 2, "no process could be made"}, group.now);
  DOCTEST_CHECK(find<Tell>(none));
  DOCTEST_CHECK(group.machine.members() == Ranks{0, 1, 2});
  for (int rank : {0, 1}) group.machine.done(rank, RankEnd::returned, std::nullopt, group.now);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.begin_attempt(group.now)) == Ranks{2});
}
