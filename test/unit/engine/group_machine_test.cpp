// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/group_machine.hpp"

#include <doctest/doctest.h>

#include "test/unit/engine/actions.hpp"

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

/// A group on virtual time.
struct Fixture {
  explicit Fixture(int world_size = 3, bool can_kill = true)
      : size(world_size), machine({world_size, 60s, 5s, can_kill, 3}) {}
  explicit Fixture(const GroupLimits& limits) : size(limits.world_size), machine(limits) {}

  void start() {
    machine.start(now);
    for (int rank = 0; rank < size; ++rank) bring_up(rank);
  }
  GroupActions bring_up(int rank) {
    machine.registered(rank);
    return machine.ready(rank, now);
  }
  void run() {
    start();
    machine.begin_attempt(now);
  }
  GroupActions lose(int rank) { return machine.lost(rank, "killed by SIGKILL", {"last words"}, now); }
  GroupActions finish(int rank, RankEnd end = RankEnd::returned) { return machine.done(rank, end, std::nullopt, now); }

  int size;
  Time now{};
  GroupMachine machine;
};

}  // namespace

DOCTEST_TEST_CASE("the group is started when the last worker is up") {
  Fixture group;
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.start(group.now)) == Ranks{0, 1, 2});
  DOCTEST_CHECK_FALSE(find<GroupStarted>(group.bring_up(2)));
  DOCTEST_CHECK_FALSE(find<GroupStarted>(group.bring_up(0)));
  DOCTEST_CHECK(find<GroupStarted>(group.bring_up(1)));
}

DOCTEST_TEST_CASE("a rank that still writes its saves is not killed when an attempt is stopped, unless at once") {
  for (const bool can_kill : {true, false}) {
    Fixture group(2, can_kill);
    group.run();
    group.machine.stop_attempt(false, group.now);
    group.machine.saving(1);
    group.finish(0, RankEnd::stopped);
    for (int late = 0; late < 3; ++late) {
      group.now += 5s;
      const auto actions = group.machine.tick(group.now);
      DOCTEST_CHECK(ranks_of<KillWorker>(actions).empty());
      DOCTEST_REQUIRE(find<Tell>(actions));
      DOCTEST_CHECK(find<Tell>(actions)->text.find("rank 1 still writes") != std::string::npos);
    }
    DOCTEST_CHECK(find<AttemptEnded>(group.finish(1, RankEnd::stopped)));
  }
  Fixture group(2);
  group.run();
  group.machine.stop_attempt(false, group.now);
  group.machine.saving(1);
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.stop_attempt(true, group.now)) == Ranks{0, 1});
}

DOCTEST_TEST_CASE("a worker that dies while starting is tried three times") {
  Fixture group;
  group.machine.start(group.now);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(1)) == Ranks{1});
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(1)) == Ranks{1});
  const auto actions = group.lose(1);
  DOCTEST_REQUIRE(find<StartFailed>(actions));
  const auto& failure = find<StartFailed>(actions)->failure;
  DOCTEST_CHECK(failure.rank == 1);
  DOCTEST_CHECK(failure.log_lines == std::vector<std::string>{"last words"});
  DOCTEST_CHECK(failure.text.find("killed by SIGKILL") != std::string::npos);
}

DOCTEST_TEST_CASE("spares that turn out to be dead are no failed starts, but what is wrong in the setup still is") {
  Fixture group({.world_size = 3, .spares = 2});
  group.start();
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(1)) == Ranks{1});
  group.machine.begin_attempt(group.now);
  // Two may have been dead already. After them it is the setup, whatever stands by meanwhile.
  for (int started = 0; started < 4; ++started) {
    group.machine.promoted(1);
    DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(1)) == Ranks{1});
  }
  group.machine.promoted(1);
  const auto actions = group.lose(1);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(actions).empty());
  DOCTEST_REQUIRE(find<Decided>(actions));
  DOCTEST_CHECK(find<Decided>(actions)->decision.error.find("(3 times)") != std::string::npos);
}

DOCTEST_TEST_CASE("a worker that does not come up in time fails the start and is killed") {
  Fixture group;
  group.machine.start(group.now);
  group.bring_up(0);
  group.bring_up(2);
  DOCTEST_REQUIRE(group.machine.deadline());
  DOCTEST_CHECK(*group.machine.deadline() == group.now + 60s);
  DOCTEST_CHECK(group.machine.tick(group.now + 59s).empty());
  const auto actions = group.machine.tick(group.now + 60s);
  DOCTEST_REQUIRE(find<StartFailed>(actions));
  DOCTEST_CHECK(find<StartFailed>(actions)->failure.rank == 1);
  DOCTEST_CHECK(ranks_of<KillWorker>(actions) == Ranks{1});
  DOCTEST_CHECK(group.lose(1).empty());
}

DOCTEST_TEST_CASE("a setup that fails ends the start with its reason") {
  Fixture group;
  group.machine.start(group.now);
  const auto actions =
      group.machine.setup_failed({FailureKind::user_error, troupe::ErrorCode::user_code, 2, "hook", {}}, group.now);
  DOCTEST_REQUIRE(find<StartFailed>(actions));
  DOCTEST_CHECK(find<StartFailed>(actions)->failure.kind == FailureKind::fatal);
}

DOCTEST_TEST_CASE("an attempt runs on all ranks and ends with the last") {
  Fixture group;
  group.start();
  DOCTEST_CHECK(ranks_of<SendRun>(group.machine.begin_attempt(group.now)) == Ranks{0, 1, 2});
  DOCTEST_CHECK(group.finish(1).empty());
  DOCTEST_CHECK(group.finish(0).empty());
  const auto actions = group.finish(2);
  DOCTEST_REQUIRE(find<AttemptEnded>(actions));
  DOCTEST_CHECK_FALSE(find<AttemptEnded>(actions)->failure);
}

DOCTEST_TEST_CASE("a lost worker halts the survivors, is replaced, and ends the attempt when they have stopped") {
  Fixture group;
  group.run();
  const auto actions = group.lose(1);
  DOCTEST_CHECK(ranks_of<SendHalt>(actions) == Ranks{0, 2});
  DOCTEST_CHECK(ranks_of<LaunchWorker>(actions) == Ranks{1});
  DOCTEST_CHECK_FALSE(find<AttemptEnded>(actions));
  group.finish(0, RankEnd::stopped);
  const auto end = group.finish(2, RankEnd::stopped);
  DOCTEST_REQUIRE(find<AttemptEnded>(end));
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->rank == 1);
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->kind == FailureKind::worker_lost);

  DOCTEST_CHECK(group.machine.begin_attempt(group.now).empty());  // rank 1 is not up yet
  DOCTEST_CHECK(ranks_of<SendRun>(group.bring_up(1)) == Ranks{0, 1, 2});
}

DOCTEST_TEST_CASE("a broken connection halts the others before the cause is known") {
  Fixture group;
  group.run();
  DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.disconnected(0, group.now)) == Ranks{0, 1, 2});
  const auto actions = group.lose(0);
  DOCTEST_CHECK(ranks_of<SendHalt>(actions).empty());
  group.finish(1, RankEnd::stopped);
  DOCTEST_CHECK(find<AttemptEnded>(group.finish(2, RankEnd::stopped))->failure->text == "killed by SIGKILL");
}

DOCTEST_TEST_CASE("the first failure of an attempt is the one that is told") {
  Fixture group;
  group.run();
  group.machine.done(2, RankEnd::threw, Failure{FailureKind::user_error, troupe::ErrorCode::user_code, 2, "first", {}},
                     group.now);
  group.lose(0);
  const auto end = group.machine.done(
      1, RankEnd::threw, Failure{FailureKind::user_error, troupe::ErrorCode::user_code, 1, "x", {}}, group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(end));
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->text == "first");
}

DOCTEST_TEST_CASE("a rank that does not stop is killed at the deadline, and its death is no failure") {
  Fixture group;
  group.run();
  DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.stop_attempt(false, group.now)) == Ranks{0, 1, 2});
  group.finish(0, RankEnd::stopped);
  group.finish(1, RankEnd::stopped);
  DOCTEST_CHECK(group.machine.tick(group.now + 4999ms).empty());
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.tick(group.now + 5s)) == Ranks{2});
  const auto end = group.lose(2);
  DOCTEST_REQUIRE(find<AttemptEnded>(end));
  DOCTEST_CHECK_FALSE(find<AttemptEnded>(end)->failure);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(end) == Ranks{2});
}

DOCTEST_TEST_CASE("a failure before a stop was asked for is told, one after it is not") {
  const Failure thrown{FailureKind::user_error, troupe::ErrorCode::user_code, 1, "no such file", {}};
  Fixture before(2);
  before.run();
  before.machine.done(1, RankEnd::threw, thrown, before.now);
  before.machine.stop_attempt(false, before.now);
  before.machine.stop_attempt(false, before.now);  // Ctrl-C, say
  const auto failed = before.finish(0, RankEnd::stopped);
  DOCTEST_REQUIRE(find<AttemptEnded>(failed));
  DOCTEST_REQUIRE(find<AttemptEnded>(failed)->failure);
  DOCTEST_CHECK(find<AttemptEnded>(failed)->failure->text == "no such file");
  DOCTEST_CHECK(ranks_of<SendRun>(before.machine.begin_attempt(before.now)) == Ranks{0, 1});
  before.finish(0);
  DOCTEST_CHECK_FALSE(find<AttemptEnded>(before.finish(1))->failure);

  Fixture after(2);
  after.run();
  after.machine.stop_attempt(false, after.now);
  after.machine.done(1, RankEnd::threw, thrown, after.now);
  const auto stopped = after.lose(0);
  DOCTEST_REQUIRE(find<AttemptEnded>(stopped));
  DOCTEST_CHECK_FALSE(find<AttemptEnded>(stopped)->failure);
}

DOCTEST_TEST_CASE("a stop at once kills without waiting") {
  Fixture group;
  group.run();
  group.machine.stop_attempt(false, group.now);
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.stop_attempt(true, group.now)) == Ranks{0, 1, 2});
}

DOCTEST_TEST_CASE("a stop while workers are still awaited ends the attempt at once") {
  Fixture group;
  group.machine.start(group.now);
  group.machine.begin_attempt(group.now);
  DOCTEST_CHECK(find<AttemptEnded>(group.machine.stop_attempt(false, group.now)));
}

DOCTEST_TEST_CASE("a thread rank that does not stop is named, and no new attempt begins over it") {
  Fixture group(3, false);
  group.run();
  group.machine.stop_attempt(false, group.now);
  group.finish(0, RankEnd::stopped);
  group.finish(2, RankEnd::stopped);
  const auto end = group.machine.tick(group.now + 5s);
  DOCTEST_REQUIRE(find<AttemptEnded>(end));
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->rank == 1);
  DOCTEST_CHECK(find<AttemptEnded>(end)->failure->code == troupe::ErrorCode::deadline);
  const auto again = group.machine.begin_attempt(group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(again));
  DOCTEST_CHECK(find<AttemptEnded>(again)->failure->rank == 1);
  DOCTEST_CHECK(ranks_of<SendLeave>(group.machine.leave(5s, group.now)) == Ranks{0, 1, 2});
  group.lose(0);
  DOCTEST_CHECK_FALSE(find<GroupGone>(group.lose(2)));
  const auto gone = group.machine.tick(group.now + 5s);
  DOCTEST_REQUIRE(find<GroupGone>(gone));
  DOCTEST_CHECK(find<GroupGone>(gone)->stuck_ranks == Ranks{1});
}

DOCTEST_TEST_CASE("a thread rank that ends after its deadline is not stuck any more") {
  Fixture group(3, false);
  group.run();
  group.machine.stop_attempt(true, group.now);
  group.machine.came_back(1, true);
  DOCTEST_CHECK(find<AttemptEnded>(group.machine.begin_attempt(group.now))->failure->rank == 0);
  group.machine.came_back(0, true);
  group.machine.came_back(2, true);
  DOCTEST_CHECK(ranks_of<SendRun>(group.machine.begin_attempt(group.now)) == Ranks{0, 1, 2});
  group.machine.stop_attempt(true, group.now);
  DOCTEST_CHECK(ranks_of<SendLeave>(group.machine.leave(5s, group.now)) == Ranks{0, 1, 2});
  group.lose(0);
  group.lose(1);
  const auto gone = group.lose(2);
  DOCTEST_REQUIRE(find<GroupGone>(gone));
  DOCTEST_CHECK(find<GroupGone>(gone)->stuck_ranks.empty());
}

DOCTEST_TEST_CASE("a thread rank that is stuck in its function is not back when it has formed a group") {
  Fixture group(2, false);
  group.run();
  group.machine.stop_attempt(true, group.now);
  for (int rank : {0, 1}) group.machine.came_back(rank, false);
  DOCTEST_CHECK(find<AttemptEnded>(group.machine.begin_attempt(group.now))->failure->rank == 0);
}

DOCTEST_TEST_CASE("a thread rank that comes up after its deadline takes part in the next run") {
  GroupMachine machine({.world_size = 1, .can_kill = false, .min_workers = 1, .max_workers = 2});
  Time now{};
  machine.start(now);
  machine.ready(0, now);
  machine.set_room(2);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(machine.begin_attempt(now)) == Ranks{1});
  now += 60s;
  const auto late = machine.tick(now);
  DOCTEST_CHECK(ranks_of<SendRun>(late) == Ranks{0});  // the others do without it
  machine.ready(1, now);
  machine.done(0, RankEnd::returned, std::nullopt, now);
  DOCTEST_CHECK(ranks_of<SendRun>(machine.begin_attempt(now)) == Ranks{0, 1});
}

DOCTEST_TEST_CASE("a thread rank whose hook threw makes room for another one") {
  GroupMachine machine({.world_size = 1, .can_kill = false, .min_workers = 1, .max_workers = 2});
  const Time now{};
  machine.start(now);
  machine.ready(0, now);
  machine.set_room(2);
  machine.begin_attempt(now);
  machine.registered(1);
  const auto actions = machine.setup_failed({FailureKind::fatal, troupe::ErrorCode::user_code, 1, "no data"}, now);
  DOCTEST_CHECK(ranks_of<SendLeave>(actions) == Ranks{1});
  DOCTEST_CHECK(ranks_of<SendRun>(actions) == Ranks{0});
  machine.lost(1, "ended", {}, now);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(machine.tick(now + 1s)) == Ranks{1});
}

DOCTEST_TEST_CASE("a thread rank whose hook was slow and then threw is no reason to wait for ever") {
  GroupMachine machine({.world_size = 2, .can_kill = false});
  Time now{};
  machine.start(now);
  for (int rank : {0, 1}) machine.registered(rank);
  machine.ready(0, now);
  DOCTEST_CHECK(find<StartFailed>(machine.tick(now += 60s)));
  machine.setup_failed({FailureKind::fatal, troupe::ErrorCode::user_code, 1, "no data"}, now);
  machine.lost(1, "ended", {}, now);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(machine.begin_attempt(now)) == Ranks{1});
  machine.leave(5s, now);
  machine.lost(0, "ended", {}, now);
  DOCTEST_CHECK(find<GroupGone>(machine.lost(1, "ended", {}, now)));
}

DOCTEST_TEST_CASE("a thread rank that was let go before it could hear of it is told when it can") {
  GroupMachine machine({.world_size = 2, .can_kill = false, .min_workers = 1, .max_workers = 2});
  const Time now{};
  machine.start(now);
  for (int rank : {0, 1}) machine.ready(rank, now);
  machine.lost(1, "ended", {}, now);
  DOCTEST_CHECK(machine.resize(1, now).size() == 1);  // the decision
  DOCTEST_CHECK(ranks_of<SendLeave>(machine.registered(1)) == Ranks{1});
  // What it does until then is of no interest.
  DOCTEST_CHECK(machine.setup_failed({FailureKind::fatal, troupe::ErrorCode::user_code, 1, "x"}, now).empty());
}

DOCTEST_TEST_CASE("a thread rank that was let go and did not stop leaves when it comes back") {
  GroupMachine machine({.world_size = 2, .can_kill = false, .min_workers = 1, .max_workers = 2});
  Time now{};
  machine.start(now);
  for (int rank : {0, 1}) {
    machine.registered(rank);
    machine.ready(rank, now);
  }
  for (int rank : ranks_of<SendRun>(machine.begin_attempt(now))) machine.live(rank, true, now);
  DOCTEST_CHECK(ranks_of<SendHalt>(machine.resize(1, now)) == Ranks{1});
  machine.held(0, "resize", false, now);
  machine.done(0, RankEnd::returned, std::nullopt, now);
  DOCTEST_CHECK(find<AttemptEnded>(machine.tick(now += 5s)));
  DOCTEST_CHECK(ranks_of<SendLeave>(machine.came_back(1, true)) == Ranks{1});
  machine.lost(1, "ended", {}, now);
  DOCTEST_CHECK(ranks_of<LaunchWorker>(machine.resize(2, now)) == Ranks{1});
}

DOCTEST_TEST_CASE("all idle workers that die at once are replaced at once") {
  Fixture group(8);
  group.start();
  for (int rank = 0; rank < 8; ++rank) DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(rank)) == Ranks{rank});
}

DOCTEST_TEST_CASE("a rank that dies again and again while idle does not hold the others up") {
  Fixture group;
  group.start();
  for (int i = 0; i < 5; ++i) {
    group.lose(1);
    group.bring_up(1);
  }
  DOCTEST_CHECK(group.lose(1).empty());
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(2)) == Ranks{2});
}

DOCTEST_TEST_CASE("an idle worker that dies is replaced, a crash loop waits for the next attempt") {
  Fixture group;
  group.start();
  for (int i = 0; i < 5; ++i) {
    DOCTEST_CHECK(ranks_of<LaunchWorker>(group.lose(1)) == Ranks{1});
    group.bring_up(1);
  }
  DOCTEST_CHECK(group.lose(1).empty());
  DOCTEST_CHECK(ranks_of<LaunchWorker>(group.machine.begin_attempt(group.now)) == Ranks{1});
}

DOCTEST_TEST_CASE("leaving asks, then terminates, then kills") {
  Fixture group;
  group.start();
  DOCTEST_CHECK(ranks_of<SendLeave>(group.machine.leave(4s, group.now)) == Ranks{0, 1, 2});
  DOCTEST_CHECK(group.lose(0).empty());
  DOCTEST_CHECK(group.machine.tick(group.now + 3999ms).empty());  // it has all of its time
  const auto polite = group.machine.tick(group.now + 4s);
  DOCTEST_CHECK(ranks_of<KillWorker>(polite) == Ranks{1, 2});
  DOCTEST_CHECK(find<KillWorker>(polite)->politely);
  group.lose(1);
  const auto harsh = group.machine.tick(group.now + 4500ms);
  DOCTEST_CHECK(ranks_of<KillWorker>(harsh) == Ranks{2});
  DOCTEST_CHECK_FALSE(find<KillWorker>(harsh)->politely);
  const auto gone = group.lose(2);
  DOCTEST_REQUIRE(find<GroupGone>(gone));
  DOCTEST_CHECK(find<GroupGone>(gone)->stuck_ranks.empty());
  DOCTEST_CHECK_FALSE(group.machine.deadline());
}

DOCTEST_TEST_CASE("a worker stopped by SIGSTOP is killed at once at shutdown") {
  Fixture group;
  group.start();
  group.machine.frozen(1, true);
  const auto actions = group.machine.leave(5s, group.now);
  DOCTEST_CHECK(ranks_of<SendLeave>(actions) == Ranks{0, 2});
  DOCTEST_CHECK(ranks_of<KillWorker>(actions) == Ranks{1});
  DOCTEST_CHECK(ranks_of<KillWorker>(group.machine.frozen(2, true)) == Ranks{2});
}

DOCTEST_TEST_CASE("leaving ends an active attempt with a reason") {
  Fixture group;
  group.run();
  const auto actions = group.machine.leave(5s, group.now);
  DOCTEST_REQUIRE(find<AttemptEnded>(actions));
  DOCTEST_CHECK(find<AttemptEnded>(actions)->failure->text.find("shut down") != std::string::npos);
}

DOCTEST_TEST_CASE("unequal reports end the attempt as a failure that is not retried") {
  Fixture group;
  group.run();
  group.finish(0);
  DOCTEST_CHECK(ranks_of<SendHalt>(group.machine.fail_attempt(
                    {FailureKind::fatal, troupe::ErrorCode::unequal_reports, 0, "unequal", {}}, group.now)) ==
                Ranks{1, 2});
  group.finish(1, RankEnd::stopped);
  DOCTEST_CHECK(find<AttemptEnded>(group.finish(2, RankEnd::stopped))->failure->text == "unequal");
}

DOCTEST_TEST_CASE("a rank that is given up is killed and its loss counts while the others are halted at once") {
  Fixture group;
  group.run();
  const auto actions = group.machine.give_up(1, "stopped", group.now);
  DOCTEST_CHECK(ranks_of<KillWorker>(actions) == Ranks{1});
  DOCTEST_CHECK(ranks_of<SendHalt>(actions) == Ranks{0, 1, 2});
  group.lose(1);
  group.finish(0, RankEnd::stopped);
  const auto last = group.finish(2, RankEnd::stopped);
  const auto* ended = find<AttemptEnded>(last);
  DOCTEST_REQUIRE(ended);
  DOCTEST_REQUIRE(ended->failure);
  DOCTEST_CHECK(ended->failure->kind == FailureKind::worker_lost);
  DOCTEST_CHECK(ended->failure->rank == 1);
}

DOCTEST_TEST_CASE("giving up a rank that is not there, or while the group leaves, does nothing") {
  Fixture group;
  group.run();
  group.lose(2);
  group.machine.leave(5s, group.now);
  DOCTEST_CHECK(group.machine.give_up(1, "stopped", group.now).empty());
  Fixture empty;
  DOCTEST_CHECK(empty.machine.give_up(0, "stopped", empty.now).empty());
}

DOCTEST_TEST_CASE("a thread that is given up cannot be killed: the attempt fails with the cause") {
  Fixture group(2, false);
  group.run();
  const auto actions = group.machine.give_up(1, "stuck", group.now);
  DOCTEST_CHECK_FALSE(find<KillWorker>(actions));
  group.finish(0, RankEnd::stopped);
  const auto last = group.finish(1, RankEnd::stopped);
  const auto* ended = find<AttemptEnded>(last);
  DOCTEST_REQUIRE(ended);
  DOCTEST_REQUIRE(ended->failure);
  DOCTEST_CHECK(ended->failure->text == "rank 1 is stuck");
}
