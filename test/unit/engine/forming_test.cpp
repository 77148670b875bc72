// SPDX-License-Identifier: Apache-2.0
// How the GroupMachine has a process group formed by all workers together.
#include <doctest/doctest.h>

#include "runtime/engine/group_machine.hpp"

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

template <class Action>
int count(const GroupActions& actions) {
  int found = 0;
  for (const auto& action : actions) found += std::holds_alternative<Action>(action) ? 1 : 0;
  return found;
}

std::uint64_t epoch_of(const GroupActions& actions) {
  for (const auto& action : actions)
    if (const auto* form = std::get_if<SendForm>(&action)) return form->epoch;
  return 0;
}

/// Two workers with a backend, on virtual time.
struct Fixture {
  GroupActions bring_up(int rank) {
    machine.registered(rank);
    return machine.ready(rank, now);
  }
  void start() {
    machine.start(now);
    bring_up(0);
    epoch = epoch_of(bring_up(1));
    form_all();
  }
  GroupActions form_all() {
    machine.formed(0, epoch, now);
    return machine.formed(1, epoch, now);
  }
  /// For no reason that anybody knows.
  GroupActions fail_to_form() {
    machine.form_failed(1, epoch, lost_group, now);
    return machine.form_failed(0, epoch, lost_group, now);
  }
  /// All leave an attempt, and the group has to be formed anew.
  GroupActions begin_after_a_halt() {
    machine.begin_attempt(now);
    machine.stop_attempt(false, now);
    for (int rank : {0, 1}) machine.done(rank, RankEnd::stopped, std::nullopt, now);
    return machine.begin_attempt(now);
  }
  GroupActions lose(int rank) { return machine.lost(rank, "killed", {}, now); }
  const Failure lost_group{FailureKind::fatal, troupe::ErrorCode::group_lost, 1, "gone", {}};

  Time now{};
  GroupMachine machine{{2, 60s, 5s, true, 3, true}};
  std::uint64_t epoch = 0;
};

}  // namespace

DOCTEST_TEST_CASE("the group is started when all workers have formed it") {
  Fixture group;
  group.machine.start(group.now);
  group.bring_up(0);
  const auto form = group.bring_up(1);
  DOCTEST_CHECK(count<SendForm>(form) == 2);
  DOCTEST_CHECK(count<GroupStarted>(form) == 0);
  DOCTEST_CHECK(count<GroupStarted>(group.machine.formed(1, epoch_of(form), group.now)) == 0);
  DOCTEST_CHECK(count<GroupStarted>(group.machine.formed(0, epoch_of(form), group.now)) == 1);
}

DOCTEST_TEST_CASE("a run uses the group that was formed, and a second one too") {
  Fixture group;
  group.start();
  for (int i = 0; i < 2; ++i) {
    const auto actions = group.machine.begin_attempt(group.now);
    DOCTEST_CHECK(count<SendRun>(actions) == 2);
    DOCTEST_CHECK(count<SendForm>(actions) == 0);
    for (int rank : {0, 1}) group.machine.done(rank, RankEnd::returned, std::nullopt, group.now);
  }
}

DOCTEST_TEST_CASE("after a halt the group is formed anew, since its collectives were aborted") {
  Fixture group;
  group.start();
  const auto actions = group.begin_after_a_halt();
  DOCTEST_CHECK(count<SendForm>(actions) == 2);
  DOCTEST_CHECK(epoch_of(actions) > group.epoch);
  group.epoch = epoch_of(actions);
  DOCTEST_CHECK(count<SendRun>(group.form_all()) == 2);
}

DOCTEST_TEST_CASE("a worker lost while forming is replaced, the others stop waiting, and all form again") {
  Fixture group;
  group.machine.start(group.now);
  group.bring_up(0);
  const auto first = epoch_of(group.bring_up(1));
  const auto actions = group.lose(1);
  DOCTEST_CHECK(count<LaunchWorker>(actions) == 1);
  DOCTEST_CHECK(count<SendAbort>(actions) == 1);
  DOCTEST_CHECK(count<StartFailed>(group.machine.form_failed(0, first, group.lost_group, group.now)) == 0);
  const auto again = group.bring_up(1);
  DOCTEST_CHECK(count<SendForm>(again) == 2);
  DOCTEST_CHECK(epoch_of(again) > first);
}

DOCTEST_TEST_CASE("a worker that dies in every forming fails the start with its end") {
  Fixture group;
  group.machine.start(group.now);
  group.bring_up(0);
  for (int death = 1; death < 3; ++death) {
    group.bring_up(1);
    DOCTEST_CHECK(count<LaunchWorker>(group.lose(1)) == 1);
    group.machine.form_failed(0, group.epoch, group.lost_group, group.now);
  }
  group.bring_up(1);
  const auto end = group.lose(1);
  DOCTEST_CHECK(count<LaunchWorker>(end) == 0);
  DOCTEST_REQUIRE(count<StartFailed>(end) == 1);
}

DOCTEST_TEST_CASE("a forming that fails three times though nobody is lost is given up") {
  Fixture group;
  group.machine.start(group.now);
  group.bring_up(0);
  group.epoch = epoch_of(group.bring_up(1));
  for (int i = 0; i < 2; ++i) group.epoch = epoch_of(group.fail_to_form());
  const auto end = group.machine.form_failed(1, group.epoch, group.lost_group, group.now);
  DOCTEST_CHECK(count<SendAbort>(end) == 1);
  DOCTEST_REQUIRE(count<StartFailed>(end) == 1);
  for (const auto& action : end)
    if (const auto* failed = std::get_if<StartFailed>(&action))
      DOCTEST_CHECK(failed->failure.text.starts_with("gone (3 times in a row, and no worker was lost"));
  DOCTEST_CHECK(group.machine.form_failed(0, group.epoch, group.lost_group, group.now).empty());
}

DOCTEST_TEST_CASE("a loss explains the formings that failed before it") {
  Fixture group;
  group.machine.start(group.now);
  group.bring_up(0);
  for (int loss = 0; loss < 2; ++loss) {
    group.epoch = epoch_of(group.bring_up(1));
    for (int i = 0; i < 2; ++i) {
      const auto again = group.fail_to_form();
      DOCTEST_CHECK(count<StartFailed>(again) == 0);
      group.epoch = epoch_of(again);
    }
    group.lose(1);
    group.machine.form_failed(0, group.epoch, group.lost_group, group.now);
  }
}

DOCTEST_TEST_CASE("a worker that dies in every forming ends a run, too") {
  Fixture group;
  group.start();
  auto actions = group.begin_after_a_halt();
  int launches = 0;
  while (count<AttemptEnded>(actions) == 0 && launches < 100) {
    actions = group.lose(1);
    group.machine.form_failed(0, 0, group.lost_group, group.now);
    if (count<LaunchWorker>(actions) == 0 && group.machine.deadline()) {
      group.now = *group.machine.deadline();
      auto later = group.machine.tick(group.now);
      actions.insert(actions.end(), later.begin(), later.end());
    }
    launches += count<LaunchWorker>(actions);
    group.bring_up(1);
  }
  DOCTEST_CHECK(count<AttemptEnded>(actions) == 1);
  DOCTEST_CHECK(launches < 100);
}

DOCTEST_TEST_CASE("a backend that throws fails the start with its reason and frees the others") {
  Fixture group;
  group.machine.start(group.now);
  group.bring_up(0);
  const auto epoch = epoch_of(group.bring_up(1));
  const auto actions = group.machine.form_failed(
      0, epoch, {FailureKind::fatal, troupe::ErrorCode::invalid_option, 0, "bad option", {}}, group.now);
  DOCTEST_CHECK(count<StartFailed>(actions) == 1);
  DOCTEST_CHECK(count<SendAbort>(actions) == 1);
  DOCTEST_CHECK(group.machine.formed(1, epoch, group.now).empty());
}

DOCTEST_TEST_CASE("workers that do not form in time fail the start") {
  Fixture group;
  group.machine.start(group.now);
  group.bring_up(0);
  group.bring_up(1);
  DOCTEST_REQUIRE(group.machine.deadline());
  DOCTEST_CHECK(count<StartFailed>(group.machine.tick(*group.machine.deadline())) == 1);
}

DOCTEST_TEST_CASE("a rank that noticed a loss first halts the others, and the cause is the one told later") {
  Fixture group;
  group.start();
  group.machine.begin_attempt(group.now);
  DOCTEST_CHECK(count<SendHalt>(group.machine.done(0, RankEnd::stopped, std::nullopt, group.now)) == 1);
  const auto end = group.lose(1);
  for (const auto& action : end)
    if (const auto* ended = std::get_if<AttemptEnded>(&action)) {
      DOCTEST_REQUIRE(ended->failure);
      DOCTEST_CHECK(ended->failure->rank == 1);
    }
  DOCTEST_CHECK(count<AttemptEnded>(end) == 1);
}

DOCTEST_TEST_CASE("after the loss of an idle worker others wait for it in no call, and the group forms again") {
  Fixture group;
  group.start();
  const auto lost = group.lose(1);
  DOCTEST_CHECK(count<SendAbort>(lost) == 1);
  DOCTEST_CHECK(count<LaunchWorker>(lost) == 1);
  const auto form = group.bring_up(1);
  DOCTEST_CHECK(count<SendForm>(form) == 2);
  DOCTEST_CHECK(epoch_of(form) > group.epoch);
  group.epoch = epoch_of(form);
  DOCTEST_CHECK(group.form_all().empty());
  DOCTEST_CHECK(count<SendRun>(group.machine.begin_attempt(group.now)) == 2);
}

DOCTEST_TEST_CASE("a run that begins while an idle group forms again waits for that") {
  Fixture group;
  group.start();
  group.lose(1);
  group.epoch = epoch_of(group.bring_up(1));
  DOCTEST_CHECK(group.machine.begin_attempt(group.now).empty());
  DOCTEST_CHECK(count<SendRun>(group.form_all()) == 2);
}

DOCTEST_TEST_CASE("an exception that follows the noticed end of a group is the cause, unless somebody was lost") {
  for (const bool lost : {false, true}) {
    Fixture group;
    group.start();
    group.machine.begin_attempt(group.now);
    group.machine.done(0, RankEnd::stopped, std::nullopt, group.now);
    const Failure late{FailureKind::user_error, troupe::ErrorCode::deadline, 1, "waited for too long"};
    const auto end = lost ? group.lose(1) : group.machine.done(1, RankEnd::threw, late, group.now);
    DOCTEST_REQUIRE(count<AttemptEnded>(end) == 1);
    for (const auto& action : end)
      if (const auto* ended = std::get_if<AttemptEnded>(&action)) {
        DOCTEST_REQUIRE(ended->failure);
        DOCTEST_CHECK(ended->failure->text == (lost ? "killed" : "waited for too long"));
      }
  }
}

DOCTEST_TEST_CASE("a backend that fails between runs, or in one, is not tried again before the next run") {
  const Failure broken{FailureKind::fatal, troupe::ErrorCode::user_code, 1, "no port", {}};
  for (const bool in_a_run : {false, true}) {
    DOCTEST_CAPTURE(in_a_run);
    Fixture group;
    group.start();
    if (!in_a_run) group.lose(1);
    const auto form = in_a_run ? group.begin_after_a_halt() : group.bring_up(1);
    const auto failed = group.machine.form_failed(1, epoch_of(form), broken, group.now);
    DOCTEST_CHECK(count<AttemptEnded>(failed) == (in_a_run ? 1 : 0));
    DOCTEST_CHECK(count<Tell>(failed) == (in_a_run ? 0 : 1));
    DOCTEST_CHECK(group.machine.form_failed(0, epoch_of(form), group.lost_group, group.now).empty());
    DOCTEST_CHECK(group.machine.calls_open(false, group.now).empty());
    DOCTEST_CHECK(count<SendForm>(group.machine.begin_attempt(group.now)) == 2);
  }
}

DOCTEST_TEST_CASE("a group that nobody waits for forms when no call is open, and takes the time it needs") {
  Fixture group;
  group.start();
  DOCTEST_CHECK(group.machine.calls_open(true, group.now).empty());
  group.lose(1);
  DOCTEST_CHECK(group.bring_up(1).empty());  // rank 0 may be in a call for long
  const auto form = group.machine.calls_open(false, group.now);
  DOCTEST_CHECK(count<SendForm>(form) == 2);
  group.now += 10min;
  DOCTEST_CHECK(group.machine.tick(group.now).empty());
  DOCTEST_CHECK(group.machine.begin_attempt(group.now).empty());
  group.now += 59s;
  DOCTEST_CHECK(group.machine.tick(group.now).empty());
  group.now += 1s;
  DOCTEST_CHECK(count<KillWorker>(group.machine.tick(group.now)) == 2);
}

DOCTEST_TEST_CASE("a worker that is taken away between runs ends the calls of others that wait for it") {
  Fixture group;
  group.start();
  const auto taken = group.machine.preempt(1, group.now + 1s, group.now);
  DOCTEST_CHECK(count<KillWorker>(taken) == 1);
  DOCTEST_CHECK(count<SendAbort>(taken) == 1);
}

DOCTEST_TEST_CASE("a worker that dies when it has formed the group frees those who still form it") {
  Fixture group;
  group.start();
  group.epoch = epoch_of(group.begin_after_a_halt());
  group.machine.formed(1, group.epoch, group.now);
  DOCTEST_CHECK(count<SendAbort>(group.lose(1)) == 1);
}
