// SPDX-License-Identifier: Apache-2.0
// Going on in place after a loss, and with more or fewer workers, on virtual time.
#include <doctest/doctest.h>

#include <utility>

#include <fmt/format.h>

#include "test/unit/engine/actions.hpp"

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

/// A group whose function goes on in place.
struct Fixture {
  explicit Fixture(GroupLimits group_limits = {.world_size = 3}) : limits(group_limits), machine(group_limits) {
    limits.stop_deadline = 5s;
    machine.start(now);
    for (int rank = 0; rank < limits.world_size; ++rank) bring_up(rank);
    if (limits.forms_group) form(machine.members());
    const auto actions = machine.begin_attempt(now);
    for (int rank : ranks_of<SendRun>(actions)) machine.live(rank, true, now);
  }

  GroupActions bring_up(int rank) {
    machine.registered(rank);
    return add(machine.ready(rank, now));
  }
  GroupActions lose(int rank) { return add(machine.lost(rank, "killed by SIGKILL", {}, now)); }
  GroupActions cannot_launch(int rank) {
    return add(machine.launch_failed(
        {FailureKind::fatal, troupe::ErrorCode::start_failed, rank, "no process could be made"}, now));
  }
  GroupActions hold(int rank) { return add(machine.held(rank, "a peer is gone", false, now)); }
  GroupActions form(const Ranks& ranks) {
    GroupActions last;
    for (int rank : ranks) last = add(machine.formed(rank, epoch, now));
    return last;
  }
  /// Keeps track of the epoch.
  GroupActions add(GroupActions actions) {
    if (const auto* forming = find<SendForm>(actions)) epoch = forming->epoch;
    return actions;
  }

  GroupLimits limits;
  Time now{};
  std::uint64_t epoch = 1;
  GroupMachine machine;
};

/// Two workers train, and a third one is on its way to them.
struct Growing : Fixture {
  explicit Growing(GroupLimits group_limits = {.world_size = 2, .min_workers = 1, .max_workers = 3})
      : Fixture(group_limits) {
    machine.set_room(3);
    machine.use_room(now);
    const auto actions = bring_up(2);
    DOCTEST_REQUIRE(ranks_of<SendRun>(actions) == Ranks{2});
    DOCTEST_REQUIRE(ranks_of<SendAbort>(actions).empty());
  }
};

}  // namespace

DOCTEST_TEST_CASE("after a loss the live wait in place, the newcomer joins them, and all go on") {
  Fixture group;
  const auto actions = group.lose(1);
  DOCTEST_CHECK(ranks_of<SendHalt>(actions).empty());
  DOCTEST_CHECK(ranks_of<SendAbort>(actions) == Ranks{0, 2});
  DOCTEST_CHECK(ranks_of<LaunchWorker>(actions) == Ranks{1});
  DOCTEST_REQUIRE(find<AskToGoOn>(actions));
  DOCTEST_CHECK(find<AskToGoOn>(actions)->failure.rank == 1);
  DOCTEST_CHECK(group.machine.go_on(group.now).empty());
  DOCTEST_CHECK(group.hold(0).empty());
  const auto joining = group.bring_up(1);
  DOCTEST_REQUIRE(find<SendRun>(joining));
  DOCTEST_CHECK(find<SendRun>(joining)->joining);
  DOCTEST_CHECK(group.hold(1).empty());
  DOCTEST_CHECK(ranks_of<SendResume>(group.hold(2)) == Ranks{0, 1, 2});
  for (int rank : {0, 1}) group.machine.done(rank, RankEnd::returned, std::nullopt, group.now);
  const auto end = group.machine.done(2, RankEnd::returned, std::nullopt, group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(end));
  DOCTEST_CHECK_FALSE(find<AttemptEnded>(end)->failure);
}

DOCTEST_TEST_CASE("nobody goes on before the answer") {
  Fixture group;
  group.lose(1);
  group.hold(0);
  group.hold(2);
  group.bring_up(1);
  DOCTEST_CHECK(group.hold(1).empty());
  DOCTEST_CHECK(ranks_of<SendResume>(group.machine.go_on(group.now)) == Ranks{0, 1, 2});
}

DOCTEST_TEST_CASE("a refusal ends the attempt with its reason") {
  Fixture group;
  const auto asked = group.lose(1);
  group.hold(0);
  const auto actions = group.machine.fail_attempt(find<AskToGoOn>(asked)->failure, group.now);
  DOCTEST_CHECK(ranks_of<SendHalt>(actions) == Ranks{0, 2});
  group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
  const auto end = group.machine.done(2, RankEnd::stopped, std::nullopt, group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(end));
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->text == "killed by SIGKILL");
}

DOCTEST_TEST_CASE("one rank that cannot go on in place sends all back to a checkpoint") {
  Fixture group;
  group.machine.live(2, false, group.now);
  const auto actions = group.lose(1);
  DOCTEST_CHECK(ranks_of<SendHalt>(actions) == Ranks{0, 2});
  DOCTEST_CHECK_FALSE(find<AskToGoOn>(actions));
}

DOCTEST_TEST_CASE("a rank that leaves its function while the others wait sends them back too") {
  Fixture group;
  group.lose(1);
  group.machine.go_on(group.now);
  group.hold(0);
  const Failure left{FailureKind::worker_lost, troupe::ErrorCode::group_lost, 2, "other parameters"};
  const auto actions = group.machine.done(2, RankEnd::stopped, left, group.now);
  DOCTEST_CHECK(ranks_of<SendHalt>(actions) == Ranks{0});
  const auto end = group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(end));
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->kind == FailureKind::worker_lost);
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->text == "rank 2: other parameters");
}

DOCTEST_TEST_CASE("a newcomer that throws ends the attempt with its exception") {
  Fixture group;
  group.lose(1);
  group.machine.go_on(group.now);
  group.hold(0);
  group.hold(2);
  group.bring_up(1);
  const Failure thrown{FailureKind::user_error, troupe::ErrorCode::user_code, 1, "no data", {}};
  DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.done(1, RankEnd::threw, thrown, group.now)) == Ranks{0, 2});
  group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
  const auto end = group.machine.done(2, RankEnd::stopped, std::nullopt, group.now);
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->text == "no data");
}

DOCTEST_TEST_CASE("the loss of a newcomer is another incident, that of a second rank meanwhile is not") {
  Fixture group;
  DOCTEST_CHECK(find<AskToGoOn>(group.lose(1)));
  DOCTEST_CHECK_FALSE(find<AskToGoOn>(group.lose(2)));
  group.machine.go_on(group.now);
  group.hold(0);
  group.bring_up(1);
  const auto again = group.lose(1);  // and the others cannot do without it
  DOCTEST_CHECK(find<AskToGoOn>(again));
  DOCTEST_CHECK(ranks_of<LaunchWorker>(again) == Ranks{1});
}

DOCTEST_TEST_CASE("when the last one with the state is lost, there is nothing to go on with") {
  Fixture group;
  group.lose(1);
  group.lose(2);
  group.machine.go_on(group.now);
  group.hold(0);
  group.bring_up(1);
  group.hold(1);
  const auto actions = group.lose(0);
  DOCTEST_CHECK(ranks_of<SendHalt>(actions) == Ranks{1});
  const auto end = group.machine.done(1, RankEnd::stopped, std::nullopt, group.now);
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->kind == FailureKind::worker_lost);
}

DOCTEST_TEST_CASE("a rank that stays in its step is killed after the deadline, and replaced") {
  Fixture group({.world_size = 3, .rejoin_deadline = 5s});
  group.lose(1);
  group.machine.go_on(group.now);
  group.hold(0);
  group.now += 5s;
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.tick(group.now)) == Ranks{2});
  const auto actions = group.lose(2);
  DOCTEST_CHECK_FALSE(find<AskToGoOn>(actions));  // our own doing
  DOCTEST_CHECK(ranks_of<LaunchWorker>(actions) == Ranks{2});
  for (int rank : {1, 2}) group.bring_up(rank);
  group.hold(1);
  DOCTEST_CHECK(ranks_of<SendResume>(group.hold(2)) == Ranks{0, 1, 2});
}

DOCTEST_TEST_CASE("the group is formed in a new epoch before all go on, and again when that fails") {
  Fixture group({.world_size = 2, .forms_group = true});
  const auto before = group.epoch;
  group.lose(1);
  group.machine.go_on(group.now);
  group.hold(0);
  group.bring_up(1);
  DOCTEST_CHECK(ranks_of<SendForm>(group.hold(1)) == Ranks{0, 1});
  DOCTEST_CHECK(group.epoch > before);
  const auto failed = group.epoch;
  const Failure lost{FailureKind::fatal, troupe::ErrorCode::group_lost, 0, "rank 1 went", {}};
  DOCTEST_CHECK(ranks_of<SendAbort>(group.machine.form_failed(0, failed, lost, group.now)) == Ranks{1});
  DOCTEST_CHECK(ranks_of<SendForm>(group.add(group.machine.form_failed(1, failed, lost, group.now))) == Ranks{0, 1});
  DOCTEST_CHECK(group.epoch > failed);
  DOCTEST_CHECK(ranks_of<SendResume>(group.form({0, 1})) == Ranks{0, 1});
}

DOCTEST_TEST_CASE("a collective that fails although nobody is lost is told as that") {
  Fixture group({.world_size = 2});
  DOCTEST_CHECK(ranks_of<SendAbort>(group.hold(0)) == Ranks{1});
  const auto actions = group.hold(1);
  DOCTEST_REQUIRE(find<AskToGoOn>(actions));
  DOCTEST_CHECK(find<AskToGoOn>(actions)->failure.text.find("no worker was lost: a peer is gone") != std::string::npos);
  DOCTEST_CHECK(ranks_of<SendResume>(group.machine.go_on(group.now)) == Ranks{0, 1});
}

DOCTEST_TEST_CASE("an exception that asks for another try is decided upon, and all go on without a newcomer") {
  Fixture group({.world_size = 2});
  const auto actions = group.machine.held(0, "bad luck", true, group.now);
  DOCTEST_CHECK(ranks_of<SendAbort>(actions) == Ranks{1});
  DOCTEST_REQUIRE(find<AskToGoOn>(actions));
  DOCTEST_CHECK(find<AskToGoOn>(actions)->failure.kind == FailureKind::user_error);
  DOCTEST_CHECK(find<AskToGoOn>(actions)->failure.text == "bad luck");
  group.machine.go_on(group.now);
  DOCTEST_CHECK(ranks_of<SendResume>(group.hold(1)) == Ranks{0, 1});
}

DOCTEST_TEST_CASE("a stop ends a group that waits in place") {
  Fixture group;
  group.lose(1);
  group.hold(0);
  DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.stop_attempt(false, group.now)) == Ranks{0, 2});
  group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
  const auto end = group.machine.done(2, RankEnd::stopped, std::nullopt, group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(end));
  DOCTEST_CHECK_FALSE(find<AttemptEnded>(end)->failure);
}

DOCTEST_TEST_CASE("an elastic group goes on with fewer when a worker cannot be replaced, and grows later") {
  Fixture group({.world_size = 3, .min_workers = 2, .max_workers = 3});
  group.lose(1);
  group.machine.go_on(group.now);
  group.hold(0);
  group.hold(2);
  group.lose(1);
  group.lose(1);
  const auto actions = group.lose(1);  // the third time while it started
  DOCTEST_CHECK(group.machine.members() == Ranks{0, 2});
  DOCTEST_CHECK(ranks_of<SendResume>(actions) == Ranks{0, 2});
  DOCTEST_REQUIRE(group.machine.deadline());
  group.now = *group.machine.deadline();
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.tick(group.now)) == Ranks{1});
  DOCTEST_CHECK(ranks_of<SendRun>(group.bring_up(1)) == Ranks{1});
  DOCTEST_CHECK(ranks_of<SendAbort>(group.hold(1)) == Ranks{0, 2});
  group.hold(0);
  DOCTEST_CHECK(ranks_of<SendResume>(group.hold(2)) == Ranks{0, 1, 2});  // and nobody was asked
}

DOCTEST_TEST_CASE("the pause before the group tries to grow again doubles") {
  Fixture group({.world_size = 2, .min_workers = 1, .max_workers = 2});
  group.lose(1);
  group.machine.go_on(group.now);
  group.hold(0);
  for (int i = 0; i < 3; ++i) group.lose(1);
  for (auto pause : {1000ms, 2000ms, 4000ms}) {
    DOCTEST_REQUIRE(group.machine.deadline());
    DOCTEST_CHECK(*group.machine.deadline() - group.now == pause);
    group.now = *group.machine.deadline();
    group.machine.tick(group.now);
    for (int i = 0; i < 3; ++i) group.lose(1);
  }
}

DOCTEST_TEST_CASE(
    "below its least size a group waits for its worker, with pauses that double, and gives up in the end") {
  for (int max_workers : {2, 4}) {
    Fixture group({.world_size = 2, .min_workers = 2, .max_workers = max_workers});
    group.lose(1);
    group.machine.go_on(group.now);
    group.hold(0);
    for (int i = 0; i < 2; ++i) group.lose(1);
    auto actions = group.lose(1);  // the third time while it started
    const auto begin = group.now;
    for (auto pause : {1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s, 60s, 60s}) {
      DOCTEST_REQUIRE(find<Decided>(actions));
      DOCTEST_CHECK(find<Decided>(actions)->decision.decision.delay == pause);
      DOCTEST_CHECK(ranks_of<LaunchWorker>(actions).empty());
      DOCTEST_REQUIRE(group.machine.deadline());
      DOCTEST_CHECK(*group.machine.deadline() <= group.now + pause);
      DOCTEST_CHECK(group.machine.tick(group.now + pause - 1ms).empty());
      group.now += pause;
      DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.tick(group.now)) == Ranks{1});
      actions = group.lose(1);  // once is enough now
    }
    DOCTEST_CHECK(group.now - begin == 303s);
    DOCTEST_CHECK(ranks_of<SendHalt>(actions) == Ranks{0});
    const auto end = group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
    DOCTEST_REQUIRE(find<AttemptEnded>(end));
    const auto& failure = *find<AttemptEnded>(end)->failure;
    DOCTEST_CHECK(failure.code == troupe::ErrorCode::start_failed);
    DOCTEST_CHECK(failure.kind == FailureKind::fatal);
    DOCTEST_CHECK(
        failure.text ==
        "rank 1 could not be started: killed by SIGKILL while starting (13 times); 10 more tries within 303 s "
        "did not help");
    DOCTEST_CHECK_FALSE(group.machine.deadline());
  }
}

DOCTEST_TEST_CASE("one fork that fails does not end a run") {
  for (bool in_place : {true, false}) {
    Fixture group({.world_size = 3});
    if (!in_place) group.machine.live(0, false, group.now);
    group.lose(1);
    group.machine.go_on(group.now);
    DOCTEST_CHECK(ranks_of<LaunchWorker>(group.cannot_launch(1)).empty());
    if (in_place) {
      for (int rank : {0, 2}) group.hold(rank);
    } else {
      for (int rank : {0, 2}) group.machine.done(rank, RankEnd::stopped, std::nullopt, group.now);
      DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.begin_attempt(group.now)) == Ranks{1});
      DOCTEST_CHECK(find<Decided>(group.cannot_launch(1)));
    }
    // Another one is lost meanwhile, and cannot be had either: both are tried again together.
    DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(2)) == Ranks{2});
    DOCTEST_CHECK_FALSE(find<Decided>(group.cannot_launch(2)));
    group.now += 1s;
    DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.tick(group.now)) == Ranks{1, 2});
    DOCTEST_CHECK(find<Decided>(group.cannot_launch(2)));
    group.bring_up(1);
    if (in_place) group.hold(1);
    group.now += 2s;
    DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.tick(group.now)) == Ranks{2});
    auto actions = group.bring_up(2);
    if (in_place) {
      group.machine.go_on(group.now);
      DOCTEST_CHECK(ranks_of<SendResume>(group.hold(2)) == Ranks{0, 1, 2});
    } else {
      DOCTEST_CHECK(ranks_of<SendRun>(actions) == Ranks{0, 1, 2});
    }
    DOCTEST_CHECK_FALSE(group.machine.deadline());
  }
}

DOCTEST_TEST_CASE("a shortage that has ended is forgotten") {
  Fixture group;
  for (int i = 0; i < 3; ++i) {
    group.lose(1);
    group.machine.go_on(group.now);
    const auto actions = group.cannot_launch(1);
    DOCTEST_REQUIRE(find<Decided>(actions));
    DOCTEST_CHECK(find<Decided>(actions)->decision.decision.delay == 1s);
    for (int rank : {0, 2}) group.hold(rank);
    group.now += 1s;
    group.machine.tick(group.now);
    group.bring_up(1);
    DOCTEST_CHECK(ranks_of<SendResume>(group.hold(1)) == Ranks{0, 1, 2});
    group.machine.live(1, true, group.now);
  }
}

DOCTEST_TEST_CASE("a newcomer that has come to the others waits with them for as long as it takes") {
  Fixture group;
  group.lose(1);
  group.lose(2);
  group.machine.go_on(group.now);
  group.cannot_launch(2);
  group.hold(0);
  group.bring_up(1);
  group.hold(1);
  for (int i = 0; i < 8; ++i) {
    group.now = *group.machine.deadline();
    DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.tick(group.now)).empty());
    group.cannot_launch(2);
  }
}

DOCTEST_TEST_CASE("a stop and a shutdown end the wait for a worker at once") {
  const auto waiting = [](Fixture& group) {
    group.lose(1);
    group.machine.go_on(group.now);
    group.cannot_launch(1);
    for (int rank : {0, 2}) group.hold(rank);
  };
  {
    Fixture group;
    waiting(group);
    DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.stop_attempt(false, group.now)) == Ranks{0, 2});
    group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
    DOCTEST_CHECK(find<AttemptEnded>(group.machine.done(2, RankEnd::stopped, std::nullopt, group.now)));
    DOCTEST_CHECK_FALSE(group.machine.deadline());
  }
  {
    Fixture group;
    waiting(group);
    DOCTEST_CHECK(find<AttemptEnded>(group.machine.leave(5s, group.now)));
    group.lose(0);
    DOCTEST_CHECK(find<GroupGone>(group.lose(2)));
  }
  {
    Fixture group;
    for (int rank : {0, 1, 2}) group.machine.done(rank, RankEnd::returned, std::nullopt, group.now);
    group.lose(1);
    group.cannot_launch(1);  // nobody needs it now
    DOCTEST_CHECK_FALSE(group.machine.deadline());
    DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.begin_attempt(group.now)) == Ranks{1});
    DOCTEST_CHECK(find<Decided>(group.cannot_launch(1)));
    const auto stopped = group.machine.stop_attempt(false, group.now);
    DOCTEST_REQUIRE(find<AttemptEnded>(stopped));
    DOCTEST_CHECK_FALSE(find<AttemptEnded>(stopped)->failure);
    DOCTEST_CHECK_FALSE(group.machine.deadline());
  }
}

DOCTEST_TEST_CASE("a member that was not replaced when it was idle is when the others need it") {
  Fixture group;
  group.machine.done(1, RankEnd::returned, std::nullopt, group.now);
  group.lose(1);
  group.cannot_launch(1);  // it has returned: nobody waits for it
  DOCTEST_CHECK_FALSE(group.machine.deadline());
  group.lose(2);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.go_on(group.now)) == Ranks{1});
}

DOCTEST_TEST_CASE("a member that was given up when it was idle is replaced when the others need it") {
  Fixture group;
  group.machine.done(1, RankEnd::returned, std::nullopt, group.now);
  group.lose(1);
  group.now += 60s;
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.tick(group.now)) == Ranks{1});  // it did not come up
  group.lose(2);
  group.machine.go_on(group.now);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(1)) == Ranks{1});
}

DOCTEST_TEST_CASE("a group grows when room appears, up to its largest size") {
  Fixture group({.world_size = 1, .min_workers = 1, .max_workers = 3});
  DOCTEST_CHECK(group.machine.occupied() == 1);
  DOCTEST_CHECK(group.machine.use_room(group.now).empty());
  group.machine.set_room(2);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.use_room(group.now)) == Ranks{1});
  DOCTEST_CHECK(group.machine.use_room(group.now).empty());  // it is on its way
  DOCTEST_CHECK(group.machine.occupied() == 2);
  DOCTEST_CHECK_FALSE(find<Decided>(group.bring_up(1)));
  const auto actions = group.hold(1);
  DOCTEST_REQUIRE(find<Decided>(actions));
  DOCTEST_CHECK(to_string(find<Decided>(actions)->decision) == "there is room for more; the group grows to 2 workers");
  DOCTEST_CHECK(ranks_of<SendResume>(group.hold(0)) == Ranks{0, 1});
  group.machine.live(1, true, group.now);
  group.machine.set_room(100);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.use_room(group.now)) == Ranks{2});
}

DOCTEST_TEST_CASE("less room lets nobody go, but is not grown beyond") {
  Fixture group({.world_size = 3, .min_workers = 1, .max_workers = 3});
  group.machine.set_room(2);
  DOCTEST_CHECK(group.machine.use_room(group.now).empty());
  DOCTEST_CHECK(group.machine.members() == Ranks{0, 1, 2});
  group.lose(1);
  group.machine.go_on(group.now);
  for (int rank : {0, 2}) group.hold(rank);
  group.cannot_launch(1);
  DOCTEST_CHECK(group.machine.occupied() == 2);
  group.now += 1s;
  DOCTEST_CHECK(group.machine.tick(group.now).empty());  // others have its room
  group.machine.set_room(3);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.use_room(group.now)) == Ranks{1});
}

DOCTEST_TEST_CASE("who asks for a size gets it whatever room there is, and no more than that") {
  Fixture group({.world_size = 1, .min_workers = 1, .max_workers = 4});
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.resize(2, group.now)) == Ranks{1});
  group.bring_up(1);
  for (int rank : {1, 0}) group.hold(rank);
  group.machine.set_room(4);
  DOCTEST_CHECK(group.machine.use_room(group.now).empty());
}

DOCTEST_TEST_CASE("room does not shorten the pause after a worker could not be had") {
  Fixture group({.world_size = 2, .min_workers = 1, .max_workers = 2});
  group.lose(1);
  group.machine.go_on(group.now);
  group.hold(0);
  group.cannot_launch(1);
  DOCTEST_CHECK(group.machine.use_room(group.now).empty());
  group.now += 1s;
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.tick(group.now)) == Ranks{1});
}

DOCTEST_TEST_CASE("an exception in place names the step after which it came") {
  Fixture group;
  const auto actions = group.machine.held(1, "bad batch", true, group.now, 5);
  DOCTEST_REQUIRE(find<AskToGoOn>(actions));
  DOCTEST_CHECK(find<AskToGoOn>(actions)->failure.step == 5);
  DOCTEST_CHECK(find<AskToGoOn>(actions)->failure.kind == FailureKind::user_error);
}

DOCTEST_TEST_CASE("texts name ranks, not places") {
  Fixture group({.world_size = 3, .min_workers = 2, .max_workers = 3});
  group.lose(0);
  group.machine.go_on(group.now);
  for (int rank : {1, 2}) group.hold(rank);
  DOCTEST_CHECK(ranks_of<SendResume>(group.cannot_launch(0)) == Ranks{1, 2});
  const auto actions = group.machine.preempt(2, group.now + 1s, group.now);
  DOCTEST_REQUIRE(find<Tell>(actions));
  DOCTEST_CHECK(find<Tell>(actions)->text == "rank 1 is preempted and will be replaced");
}

DOCTEST_TEST_CASE("a resize lets newcomers in and the last ones go, in place") {
  Fixture group({.world_size = 2, .min_workers = 1, .max_workers = 4});
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.resize(4, group.now)) == Ranks{2, 3});
  DOCTEST_CHECK(group.bring_up(2).empty());  // both come together
  DOCTEST_CHECK(ranks_of<SendRun>(group.bring_up(3)) == Ranks{2, 3});
  DOCTEST_CHECK(group.hold(3).empty());
  DOCTEST_CHECK(ranks_of<SendAbort>(group.hold(2)) == Ranks{0, 1});
  group.hold(0);
  DOCTEST_CHECK(ranks_of<SendResume>(group.hold(1)) == Ranks{0, 1, 2, 3});
  for (int rank : {2, 3}) group.machine.live(rank, true, group.now);

  const auto fewer = group.machine.resize(3, group.now);
  DOCTEST_CHECK(ranks_of<SendHalt>(fewer) == Ranks{3});
  DOCTEST_CHECK(group.machine.members() == Ranks{0, 1, 2});
  for (int rank : {0, 1}) group.hold(rank);
  DOCTEST_CHECK(ranks_of<SendResume>(group.hold(2)) == Ranks{0, 1, 2});
  DOCTEST_CHECK(ranks_of<SendLeave>(group.machine.done(3, RankEnd::stopped, std::nullopt, group.now)) == Ranks{3});
  DOCTEST_CHECK(group.lose(3).empty());
}

DOCTEST_TEST_CASE("a change of size waits for a long step, and a loss during that wait does not") {
  Fixture group({.world_size = 3, .min_workers = 1, .max_workers = 4, .rejoin_deadline = 5s});
  group.machine.resize(4, group.now);
  group.bring_up(3);
  for (int rank : {3, 0, 2}) group.hold(rank);
  for (int i = 0; i < 10; ++i) {
    group.now += 5s;
    const auto actions = group.machine.tick(group.now);
    DOCTEST_REQUIRE(actions.size() == 1);
    DOCTEST_CHECK(find<Tell>(actions)->text.ends_with("for rank 1 to come to the end of a step"));
  }
  group.now += 4s;
  group.lose(2);
  group.machine.go_on(group.now);
  group.now += 4s;
  DOCTEST_CHECK(group.machine.tick(group.now).empty());  // it has as long as after any loss
  group.now += 1s;
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.tick(group.now)) == Ranks{1});
}

DOCTEST_TEST_CASE("a worker that is ready before the function can go on in place takes part as soon as it can") {
  Fixture group({.world_size = 1, .min_workers = 1, .max_workers = 2});
  group.machine.live(0, false, group.now);
  group.machine.set_room(2);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.use_room(group.now)) == Ranks{1});
  DOCTEST_CHECK(group.bring_up(1).empty());
  DOCTEST_CHECK(ranks_of<SendRun>(group.machine.live(0, true, group.now)) == Ranks{1});
  group.machine.live(0, false, group.now);
  DOCTEST_CHECK(group.hold(1).empty());
  DOCTEST_CHECK(ranks_of<SendAbort>(group.machine.live(0, true, group.now)) == Ranks{0});
}

DOCTEST_TEST_CASE("the others train on while a newcomer is on its way to them, however long that takes") {
  Growing group;
  DOCTEST_CHECK_FALSE(group.machine.deadline());
  group.now += 10min;
  DOCTEST_CHECK(group.machine.tick(group.now).empty());
  DOCTEST_CHECK(group.machine.members() == Ranks{0, 1});
  DOCTEST_CHECK(ranks_of<SendAbort>(group.hold(2)) == Ranks{0, 1});
  group.hold(0);
  DOCTEST_CHECK(ranks_of<SendResume>(group.hold(1)) == Ranks{0, 1, 2});  // and nobody was asked
}

DOCTEST_TEST_CASE("a newcomer that fails on its way to the others disturbs nobody, and another one is tried later") {
  using Failing = GroupActions (*)(Growing&);
  const std::pair<Failing, const char*> ways[] = {
      {[](Growing& group) { return group.lose(2); }, "was lost before it could join the others: killed by SIGKILL"},
      {[](Growing& group) {
         return group.machine.done(2, RankEnd::threw,
                                   Failure{FailureKind::user_error, troupe::ErrorCode::user_code, 2, "no data"},
                                   group.now);
       },
       "threw before it could join the others: no data"},
      {[](Growing& group) { return group.machine.done(2, RankEnd::stopped, std::nullopt, group.now); },
       "left its function before it could join the others"},
      {[](Growing& group) { return group.machine.done(2, RankEnd::returned, std::nullopt, group.now); },
       "returned before it could join the others"}};
  for (const auto& [fail, why] : ways) {
    DOCTEST_CAPTURE(why);
    Growing group;
    for (auto pause : {1s, 2s, 4s}) {
      DOCTEST_CHECK(group.machine.disconnected(2, group.now).empty());
      const auto actions = fail(group);
      DOCTEST_CHECK(ranks_of<SendHalt>(actions).empty());
      DOCTEST_CHECK(ranks_of<SendAbort>(actions).empty());
      DOCTEST_CHECK_FALSE(find<AskToGoOn>(actions));
      DOCTEST_REQUIRE(find<Decided>(actions));
      DOCTEST_CHECK(to_string(find<Decided>(actions)->decision) ==
                    fmt::format("a newcomer {}; the group goes on with 2 workers", why));
      group.lose(2);  // it was told to leave
      group.now += pause - 1ms;
      DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.tick(group.now)).empty());
      group.now += 1ms;
      DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.tick(group.now)) == Ranks{2});
      DOCTEST_CHECK(ranks_of<SendRun>(group.bring_up(2)) == Ranks{2});
    }
    DOCTEST_CHECK(group.machine.members() == Ranks{0, 1});
  }
}

DOCTEST_TEST_CASE("others that are lost while a newcomer is on its way do not wait for it") {
  Growing group;
  DOCTEST_CHECK(ranks_of<SendAbort>(group.lose(0)) == Ranks{1});
  group.machine.go_on(group.now);
  group.hold(1);
  group.bring_up(0);
  DOCTEST_CHECK(ranks_of<SendResume>(group.hold(0)) == Ranks{0, 1});
}

DOCTEST_TEST_CASE("the end of a run does not wait for a newcomer that has not come") {
  for (bool can_kill : {true, false}) {
    Growing group({.world_size = 2, .can_kill = can_kill, .min_workers = 1, .max_workers = 3});
    group.machine.done(0, RankEnd::returned, std::nullopt, group.now);
    DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.done(1, RankEnd::returned, std::nullopt, group.now)) == Ranks{2});
    group.now += 5s;
    auto actions = group.machine.tick(group.now);
    if (can_kill) {
      DOCTEST_CHECK(ranks_of<KillWorker>(actions) == Ranks{2});
      actions = group.lose(2);
    }
    DOCTEST_REQUIRE(find<AttemptEnded>(actions));
    DOCTEST_CHECK_FALSE(find<AttemptEnded>(actions)->failure);
    DOCTEST_CHECK(ranks_of<SendRun>(group.machine.begin_attempt(group.now)) == (can_kill ? Ranks{} : Ranks{0, 1}));
  }
}

DOCTEST_TEST_CASE("a run that nobody can join in place runs again on more workers, if somebody asked for them") {
  Fixture group({.world_size = 1, .min_workers = 1, .max_workers = 2});
  group.machine.resize(2, group.now);
  DOCTEST_CHECK(ranks_of<SendRun>(group.bring_up(1)) == Ranks{1});
  DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.done(1, RankEnd::stopped, std::nullopt, group.now)) == Ranks{0});
  const auto end = group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(end));
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->kind == FailureKind::resized);
  DOCTEST_CHECK(ranks_of<SendRun>(group.machine.begin_attempt(group.now)) == Ranks{0, 1});
}

DOCTEST_TEST_CASE("a smaller size is enough reason to let newcomers go that have not come yet") {
  Growing group;
  DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.resize(2, group.now)) == Ranks{2});
  DOCTEST_CHECK(ranks_of<SendLeave>(group.machine.done(2, RankEnd::stopped, std::nullopt, group.now)) == Ranks{2});
}

DOCTEST_TEST_CASE("a replacement that dies again and again on its way to the others is done without, at no cost") {
  for (bool forms_group : {true, false}) {
    Fixture group({.world_size = 3, .forms_group = forms_group, .min_workers = 2, .max_workers = 3});
    DOCTEST_CHECK(find<AskToGoOn>(group.lose(1)));
    group.machine.go_on(group.now);
    for (int rank : {0, 2}) group.hold(rank);
    for (int i = 0; i < 2; ++i) {
      group.bring_up(1);
      const auto actions = group.lose(1);
      DOCTEST_CHECK_FALSE(find<AskToGoOn>(actions));
      DOCTEST_CHECK(ranks_of<LaunchWorker>(actions) == Ranks{1});
    }
    group.bring_up(1);
    const auto actions = group.add(group.lose(1));
    DOCTEST_CHECK_FALSE(find<AskToGoOn>(actions));
    DOCTEST_REQUIRE(find<Decided>(actions));
    DOCTEST_CHECK(to_string(find<Decided>(actions)->decision) ==
                  "rank 1 could not be started: killed by SIGKILL before it could join the others (3 times); "
                  "the group goes on with 2 workers");
    DOCTEST_CHECK(ranks_of<SendResume>(forms_group ? group.form({0, 2}) : actions) == Ranks{0, 2});
  }
}

DOCTEST_TEST_CASE("a replacement that has come to the others has a clean record") {
  Fixture group({.world_size = 3, .min_workers = 2, .max_workers = 3});
  for (int i = 0; i < 3; ++i) {
    group.lose(1);
    group.machine.go_on(group.now);
    for (int rank : {0, 2}) group.hold(rank);
    for (int death = 0; death < 2; ++death) {
      group.bring_up(1);
      DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(1)) == Ranks{1});
    }
    group.bring_up(1);
    DOCTEST_CHECK(ranks_of<SendResume>(group.hold(1)) == Ranks{0, 1, 2});
    group.machine.live(1, true, group.now);
  }
}

DOCTEST_TEST_CASE("a replacement that does not come to the others is done without, if there are enough of them") {
  Fixture group({.world_size = 3, .min_workers = 2, .max_workers = 3});
  group.lose(1);
  group.machine.go_on(group.now);
  for (int rank : {0, 2}) group.hold(rank);
  group.bring_up(1);
  group.now += 60s;
  const auto actions = group.machine.tick(group.now);
  DOCTEST_CHECK(ranks_of<SendHalt>(actions) == Ranks{1});
  DOCTEST_CHECK(ranks_of<SendResume>(actions) == Ranks{0, 2});
  DOCTEST_REQUIRE(find<Decided>(actions));
  DOCTEST_CHECK(find<Decided>(actions)->decision.error.starts_with("rank 1 was not up within 60000 ms"));
}

DOCTEST_TEST_CASE("a resize takes in a worker that is ready already") {
  Fixture group({.world_size = 1, .min_workers = 1, .max_workers = 2});
  group.machine.live(0, false, group.now);
  group.machine.set_room(2);
  group.machine.use_room(group.now);
  group.bring_up(1);
  DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.resize(2, group.now)) == Ranks{0});
  const auto end = group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(end));
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->kind == FailureKind::resized);
  DOCTEST_CHECK(ranks_of<SendRun>(group.machine.begin_attempt(group.now)) == Ranks{0, 1});
}

DOCTEST_TEST_CASE("a worker that a resize lets go may finish what it writes") {
  Fixture group({.world_size = 2, .stop_deadline = 5s, .min_workers = 1, .max_workers = 2});
  group.machine.saving(1);
  DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.resize(1, group.now)) == Ranks{1});
  group.now += 5s;
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.tick(group.now)).empty());
  DOCTEST_CHECK(ranks_of<SendLeave>(group.machine.done(1, RankEnd::stopped, std::nullopt, group.now)) == Ranks{1});
  group.now += 5s;
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.tick(group.now)) == Ranks{1});  // it has written, and does not leave
}

DOCTEST_TEST_CASE("a dying worker that a resize lets go does not keep the others waiting") {
  Fixture group({.world_size = 3, .min_workers = 1, .max_workers = 3});
  group.add(group.machine.disconnected(2, group.now));
  group.hold(0);
  group.hold(1);
  DOCTEST_CHECK(ranks_of<SendResume>(group.machine.resize(2, group.now)) == Ranks{0, 1});
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(2)).empty());
}

DOCTEST_TEST_CASE("a resize during a recovery lets the newcomer go, not the one that has the state") {
  Fixture group({.world_size = 2, .min_workers = 1, .max_workers = 2});
  group.lose(0);
  group.machine.go_on(group.now);
  group.hold(1);
  const auto actions = group.machine.resize(1, group.now);
  DOCTEST_CHECK(ranks_of<SendResume>(actions) == Ranks{1});
  DOCTEST_CHECK(group.machine.members() == Ranks{1});
}

DOCTEST_TEST_CASE("who goes on in place is told again of those that are still to be taken away") {
  Fixture group;
  group.machine.preempt(2, group.now + 60s, group.now);
  group.lose(1);
  group.machine.go_on(group.now);
  group.bring_up(1);
  for (int rank : {0, 1}) group.hold(rank);
  const auto actions = group.hold(2);
  DOCTEST_CHECK(ranks_of<SendResume>(actions) == Ranks{0, 1, 2});
  DOCTEST_CHECK(ranks_of<SendNotice>(actions) == Ranks{0, 1, 2});
}

DOCTEST_TEST_CASE("of newcomers that do not all come, those that do are let in") {
  Fixture group({.world_size = 2, .min_workers = 1, .max_workers = 4});
  group.machine.resize(4, group.now);
  group.bring_up(3);
  for (int i = 0; i < 2; ++i) group.lose(2);
  DOCTEST_CHECK(ranks_of<SendRun>(group.lose(2)) == Ranks{3});
  group.hold(3);
  DOCTEST_CHECK(group.machine.members() == Ranks{0, 1, 3});
}

DOCTEST_TEST_CASE("a resize runs a function again that cannot go on in place, and costs no retry") {
  Fixture group({.world_size = 2, .min_workers = 1, .max_workers = 3});
  group.machine.live(0, false, group.now);
  group.machine.resize(3, group.now);
  DOCTEST_CHECK(ranks_of<SendHalt>(group.bring_up(2)) == Ranks{0, 1});
  group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
  const auto end = group.machine.done(1, RankEnd::stopped, std::nullopt, group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(end));
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->kind == FailureKind::resized);
  DOCTEST_CHECK(ranks_of<SendRun>(group.machine.begin_attempt(group.now)) == Ranks{0, 1, 2});
}

DOCTEST_TEST_CASE("between runs a resize takes effect at once") {
  Fixture group({.world_size = 2, .min_workers = 1, .max_workers = 3});
  for (int rank : {0, 1}) group.machine.done(rank, RankEnd::returned, std::nullopt, group.now);
  DOCTEST_CHECK(ranks_of<SendLeave>(group.machine.resize(1, group.now)) == Ranks{1});
  group.lose(1);
  DOCTEST_CHECK(ranks_of<SendRun>(group.machine.begin_attempt(group.now)) == Ranks{0});
}
