// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/run_machine.hpp"

#include <doctest/doctest.h>

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

const Failure lost{FailureKind::worker_lost, troupe::ErrorCode::worker_lost, 1, "killed by SIGKILL", {}};

template <class Action>
const Action* only(const RunActions& actions) {
  return actions.size() == 1 ? std::get_if<Action>(&actions.front()) : nullptr;
}

}  // namespace

DOCTEST_TEST_CASE("a run that ends well takes one attempt") {
  RunMachine machine({});
  auto begin = machine.begin(Time{});
  DOCTEST_REQUIRE(only<BeginAttempt>(begin));
  DOCTEST_CHECK(only<BeginAttempt>(begin)->attempt == 1);
  auto end = machine.attempt_ended(std::nullopt, Time{});
  DOCTEST_REQUIRE(only<FinishRun>(end));
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.status == RunStatus::succeeded);
  DOCTEST_CHECK(machine.finished());
}

DOCTEST_TEST_CASE("a lost worker costs one retry and raises the attempt") {
  RunMachine machine({.max_retries = 1});
  machine.begin(Time{});
  auto again = machine.attempt_ended(lost, Time{});
  DOCTEST_REQUIRE(only<BeginAttempt>(again));
  DOCTEST_CHECK(only<BeginAttempt>(again)->attempt == 2);
  auto end = machine.attempt_ended(lost, Time{});
  DOCTEST_REQUIRE(only<FinishRun>(end));
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.status == RunStatus::failed);
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.attempts == 2);
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.failure->rank == 1);
}

DOCTEST_TEST_CASE("the second restart without progress waits for its time") {
  RunMachine machine({.max_retries = 5});
  machine.begin(Time{});
  machine.attempt_ended(lost, Time{});
  DOCTEST_CHECK(machine.attempt_ended(lost, Time{}).empty());
  DOCTEST_REQUIRE(machine.deadline());
  DOCTEST_CHECK(machine.tick(*machine.deadline() - 1ms).empty());
  DOCTEST_CHECK(only<BeginAttempt>(machine.tick(*machine.deadline())));
  DOCTEST_CHECK_FALSE(machine.deadline());
}

DOCTEST_TEST_CASE("an asked stop ends well, whatever the ranks do meanwhile") {
  RunMachine machine({.max_retries = 5});
  machine.begin(Time{});
  auto stop = machine.stop(StopReason::asked);
  DOCTEST_REQUIRE(only<StopAttempt>(stop));
  DOCTEST_CHECK_FALSE(only<StopAttempt>(stop)->at_once);
  DOCTEST_CHECK(machine.stop(StopReason::asked).empty());
  auto end = machine.attempt_ended(lost, Time{});
  DOCTEST_REQUIRE(only<FinishRun>(end));
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.status == RunStatus::stopped);
}

DOCTEST_TEST_CASE("an asked stop does not hide the failure that was ending the run already") {
  const Failure thrown{FailureKind::user_error, troupe::ErrorCode::user_code, 1, "no such file", {}};
  const auto end_after_stop = [](RetryLimits limits, const Failure& failure) {
    RunMachine machine(limits);
    machine.begin(Time{});
    machine.stop(StopReason::asked);
    auto end = machine.attempt_ended(failure, Time{});
    DOCTEST_REQUIRE(only<FinishRun>(end));
    return only<FinishRun>(end)->outcome;
  };
  const auto outcome = end_after_stop({.max_retries = 5}, thrown);
  DOCTEST_CHECK(outcome.status == RunStatus::failed);
  DOCTEST_REQUIRE(outcome.failure);
  DOCTEST_CHECK(outcome.failure->text == "no such file");
  DOCTEST_CHECK(end_after_stop({.max_retries = 0}, lost).status == RunStatus::failed);
  DOCTEST_CHECK(end_after_stop({.max_retries = 1}, lost).status == RunStatus::stopped);
}

DOCTEST_TEST_CASE("a second interrupt ends the attempt at once") {
  RunMachine machine({});
  machine.begin(Time{});
  DOCTEST_CHECK_FALSE(only<StopAttempt>(machine.stop(StopReason::interrupted))->at_once);
  DOCTEST_CHECK(only<StopAttempt>(machine.stop(StopReason::interrupted))->at_once);
  auto end = machine.attempt_ended(std::nullopt, Time{});
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.status == RunStatus::interrupted);
}

DOCTEST_TEST_CASE("an interrupt after an asked stop is the first interrupt") {
  RunMachine machine({});
  machine.begin(Time{});
  machine.stop(StopReason::asked);
  DOCTEST_CHECK_FALSE(only<StopAttempt>(machine.stop(StopReason::interrupted))->at_once);
}

DOCTEST_TEST_CASE("a failed callback fails the run with its text") {
  RunMachine machine({.max_retries = 5});
  machine.begin(Time{});
  machine.stop(StopReason::failure,
               Failure{FailureKind::fatal, troupe::ErrorCode::callback_failed, -1, "disk full", {}});
  auto end = machine.attempt_ended(std::nullopt, Time{});
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.status == RunStatus::failed);
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.failure->text == "disk full");
}

DOCTEST_TEST_CASE("a stop during the pause before a restart ends the run at once") {
  RunMachine machine({.max_retries = 5});
  machine.begin(Time{});
  machine.attempt_ended(lost, Time{});
  machine.attempt_ended(lost, Time{});
  auto end = machine.stop(StopReason::interrupted);
  DOCTEST_REQUIRE(only<FinishRun>(end));
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.status == RunStatus::interrupted);
}

DOCTEST_TEST_CASE("a thread that does not stop is reported even when the stop was asked for") {
  RunMachine machine({});
  machine.begin(Time{});
  machine.stop(StopReason::asked);
  auto end = machine.attempt_ended(Failure{FailureKind::fatal, troupe::ErrorCode::deadline, 2, "stuck", {}}, Time{});
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.status == RunStatus::failed);
}

DOCTEST_TEST_CASE("an interrupt ends a run as one, even if a thread does not stop") {
  RunMachine machine({});
  machine.begin(Time{});
  machine.stop(StopReason::interrupted);
  auto end = machine.attempt_ended(Failure{FailureKind::fatal, troupe::ErrorCode::deadline, 2, "stuck", {}}, Time{});
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.status == RunStatus::interrupted);
}

DOCTEST_TEST_CASE("damage is answered at once or after the pause, and costs a retry") {
  RunMachine machine({.max_retries = 5});
  machine.begin(Time{});
  DOCTEST_CHECK(only<GoOn>(machine.damaged(lost, Time{})));
  DOCTEST_CHECK(machine.damaged(lost, Time{}).empty());
  DOCTEST_REQUIRE(machine.deadline());
  DOCTEST_CHECK(machine.tick(*machine.deadline() - 1ms).empty());
  DOCTEST_CHECK(only<GoOn>(machine.tick(*machine.deadline())));
  DOCTEST_CHECK(machine.attempt() == 1);
  DOCTEST_CHECK(machine.restarts().lost_workers == 2);
}

DOCTEST_TEST_CASE("a refused damage ends the attempt, and the run with that reason") {
  RunMachine machine({.max_retries = 0});
  machine.begin(Time{});
  DOCTEST_CHECK(only<FailAttempt>(machine.damaged(lost, Time{})));
  machine.note({.error = "the group shrinks"});
  const auto end = machine.attempt_ended(lost, Time{});
  DOCTEST_REQUIRE(only<FinishRun>(end));
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.decision == "max_retries = 0 is used up");
}

DOCTEST_TEST_CASE("what was granted and could not be done in place costs nothing more, but keeps its pause") {
  const Failure threw{FailureKind::user_error, troupe::ErrorCode::user_code, 1, "bad batch", {}, -1, 5};
  RunMachine machine({.max_retries = 5, .retry_user_errors = true});
  machine.begin(Time{});
  machine.damaged(threw, Time{});
  DOCTEST_CHECK(only<BeginAttempt>(machine.attempt_ended(threw, Time{})));
  DOCTEST_REQUIRE(machine.decisions().size() == 2);
  DOCTEST_CHECK(to_string(machine.decisions()[1]) ==
                "the workers could not go on in place; the function runs again, at no further cost");
  const Failure mismatch{FailureKind::worker_lost, troupe::ErrorCode::group_lost, -1, "rank 0: other parameters"};
  auto again = threw;
  again.step = 6;
  DOCTEST_CHECK(machine.damaged(again, Time{}).empty());
  const auto pause = machine.deadline();
  DOCTEST_CHECK(machine.attempt_ended(mismatch, Time{}).empty());
  DOCTEST_REQUIRE(machine.deadline());
  DOCTEST_CHECK(*machine.deadline() == *pause);
  DOCTEST_CHECK(only<BeginAttempt>(machine.tick(*pause)));
  DOCTEST_REQUIRE(machine.decisions().size() == 4);
  DOCTEST_CHECK(
      to_string(machine.decisions()[3]) ==
      "the workers could not go on in place: rank 0: other parameters; the function runs again, at no further "
      "cost");
}

DOCTEST_TEST_CASE("a stop after a granted damage asks for no second grant") {
  RunMachine machine({.max_retries = 1});
  machine.begin(Time{});
  DOCTEST_CHECK(only<GoOn>(machine.damaged(lost, Time{})));
  machine.stop(StopReason::asked);  // while the group falls back to a checkpoint
  const auto end = machine.attempt_ended(lost, Time{});
  DOCTEST_REQUIRE(only<FinishRun>(end));
  DOCTEST_CHECK(only<FinishRun>(end)->outcome.status == RunStatus::stopped);
}

DOCTEST_TEST_CASE("a stop ends the pause before ranks go on in place") {
  RunMachine machine({.max_retries = 5});
  machine.begin(Time{});
  machine.damaged(lost, Time{});
  machine.damaged(lost, Time{});
  DOCTEST_CHECK(only<StopAttempt>(machine.stop(StopReason::asked)));
  DOCTEST_CHECK_FALSE(machine.deadline());
  DOCTEST_CHECK(machine.tick(Time{} + 1h).empty());
}

DOCTEST_TEST_CASE("what the group decided by itself stands between the other decisions and costs nothing") {
  RunMachine machine({.max_retries = 1});
  machine.begin(Time{});
  machine.note({.cause = FailureKind::resized, .error = "resize(3)"});
  DOCTEST_CHECK(only<GoOn>(machine.damaged(lost, Time{})));
  DOCTEST_REQUIRE(machine.decisions().size() == 2);
  DOCTEST_CHECK(machine.decisions()[0].error == "resize(3)");
  DOCTEST_CHECK(machine.decisions()[0].attempt == 1);
}

DOCTEST_TEST_CASE("nothing happens after the end") {
  RunMachine machine({});
  machine.begin(Time{});
  machine.attempt_ended(std::nullopt, Time{});
  DOCTEST_CHECK(machine.attempt_ended(lost, Time{}).empty());
  DOCTEST_CHECK(machine.stop(StopReason::interrupted).empty());
  DOCTEST_CHECK(machine.tick(Time{} + 1h).empty());
}
