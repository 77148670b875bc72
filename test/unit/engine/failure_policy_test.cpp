// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/failure_policy.hpp"

#include <doctest/doctest.h>

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

const Failure lost{FailureKind::worker_lost, troupe::ErrorCode::worker_lost, 1, "killed by SIGKILL"};
const Failure fatal{FailureKind::fatal, troupe::ErrorCode::refused, 0, "other build"};
const Failure preempted{FailureKind::preempted, troupe::ErrorCode::worker_lost, 2, "taken away"};

Failure threw(const char* text = "bad batch", std::int64_t round = 7) {
  return {FailureKind::user_error, troupe::ErrorCode::user_code, 0, text, {}, round};
}

/// A run on virtual time: attempts of some length, one after the other.
struct Attempts {
  explicit Attempts(RetryLimits limits) : policy(limits) {}

  enum class Work { none, repeated, fresh };
  RetryDecision fail(const Failure& failure, Work work = Work::none, Duration lasted = 1s) {
    policy.attempt_begun(now);
    now += lasted;
    if (work != Work::none) policy.worked();
    if (work == Work::fresh) policy.progress();
    return policy.decide(failure, now);
  }
  /// The attempt goes on where it is, if it may.
  RetryDecision damage(const Failure& failure, Work work = Work::none, Duration since = 1s) {
    now += since;
    if (work != Work::none) policy.worked();
    if (work == Work::fresh) policy.progress();
    return policy.decide(failure, now, true);
  }

  FailurePolicy policy;
  Time now = Time{} + 1h;
};

using Work = Attempts::Work;

Failure threw_after_step(std::int64_t step, const char* text = "bad batch") {
  auto failure = threw(text, -1);
  failure.step = step;
  return failure;
}

bool says(const RetryDecision& decision, const std::string& part) {
  return decision.reason.find(part) != std::string::npos;
}

}  // namespace

DOCTEST_TEST_CASE("max_retries gives exactly that many restarts") {
  for (int max_retries : {0, 1, 3}) {
    Attempts run({.max_retries = max_retries});
    for (int i = 0; i < max_retries; ++i) DOCTEST_CHECK(run.fail(lost, Work::fresh, 1h).retry);
    const auto last = run.fail(lost, Work::fresh, 1h);
    DOCTEST_CHECK_FALSE(last.retry);
    DOCTEST_CHECK(last.reason == "max_retries = " + std::to_string(max_retries) + " is used up");
  }
}

DOCTEST_TEST_CASE("max_retries of -1 has no limit for a run that gets on") {
  Attempts run({.max_retries = -1});
  for (int i = 0; i < 1000; ++i) DOCTEST_REQUIRE(run.fail(lost, Work::fresh).retry);
}

DOCTEST_TEST_CASE("user errors and lost workers have a window and a pause each") {
  Attempts run({.max_retries = -1, .retry_user_errors = true, .window_restarts = 2});
  for (int round = 0; round < 2; ++round) {
    const auto pause = round == 0 ? 0ms : 100ms;
    DOCTEST_CHECK(run.fail(lost).delay == pause);
    DOCTEST_CHECK(run.fail(threw("bad batch", round)).delay == pause);
  }
  DOCTEST_CHECK(says(run.fail(lost), "crash loop"));
  DOCTEST_CHECK(says(run.fail(threw("bad batch", 9)), "crash loop"));
}

DOCTEST_TEST_CASE("user errors are retried only if asked and from a budget of their own") {
  Attempts strict({.max_retries = 3});
  DOCTEST_CHECK_FALSE(strict.fail(threw()).retry);
  Attempts asked({.max_retries = 1, .retry_user_errors = true});
  DOCTEST_CHECK(asked.fail(threw("one")).retry);
  DOCTEST_CHECK(asked.fail(lost).retry);
  DOCTEST_CHECK(says(asked.fail(threw("two")), "max_retries = 1"));
  DOCTEST_CHECK(asked.policy.restarts().user_errors == 1);
  DOCTEST_CHECK(asked.policy.restarts().lost_workers == 1);
}

DOCTEST_TEST_CASE("fatal failures are never retried") {
  Attempts run({.max_retries = -1, .retry_user_errors = true});
  DOCTEST_CHECK_FALSE(run.fail(fatal).retry);
}

DOCTEST_TEST_CASE("an exception that comes again at the same place ends the run early") {
  Attempts run({.max_retries = 10, .retry_user_errors = true});
  DOCTEST_CHECK(run.fail(threw("bad batch", 7), Work::fresh).retry);
  const auto again = run.fail(threw("bad batch", 7), Work::repeated);
  DOCTEST_CHECK_FALSE(again.retry);
  DOCTEST_CHECK(says(again, "the same exception as before at the same place (after round 7)"));
}

DOCTEST_TEST_CASE("another text or another round is another exception") {
  Attempts run({.max_retries = 10, .retry_user_errors = true});
  DOCTEST_CHECK(run.fail(threw("bad batch", 7), Work::fresh).retry);
  DOCTEST_CHECK(run.fail(threw("bad batch", 8), Work::fresh).retry);
  DOCTEST_CHECK(run.fail(threw("bad disk", 8), Work::fresh).retry);
  DOCTEST_CHECK(run.fail(lost, Work::fresh).retry);
  DOCTEST_CHECK_FALSE(run.fail(threw("bad disk", 8), Work::repeated).retry);
}

DOCTEST_TEST_CASE("an exception that comes again after the same step ends a run that goes on in place") {
  for (std::int64_t step : {5, -1}) {
    Attempts run({.max_retries = -1, .retry_user_errors = true});
    DOCTEST_CHECK(run.damage(threw_after_step(step), Work::fresh).retry);
    const auto again = run.damage(threw_after_step(step));
    DOCTEST_CHECK_FALSE(again.retry);
    DOCTEST_CHECK(says(again, "the same exception as before at the same place"));
    DOCTEST_CHECK(says(again, step == 5 ? "(after step 5)" : "(before its first step)"));
  }
}

DOCTEST_TEST_CASE("exceptions after different steps or with different texts are not the same") {
  Attempts run({.max_retries = -1, .retry_user_errors = true});
  for (std::int64_t step = 0; step < 100; ++step)
    for (const auto* text : {"a", "b"}) DOCTEST_REQUIRE(run.damage(threw_after_step(step, text), Work::fresh).retry);
}

DOCTEST_TEST_CASE("no progress in three restarts in place ends the run, however far apart they are") {
  for (auto apart : {Duration(7s), Duration(61s), Duration(24h)})
    for (auto work : {Work::none, Work::repeated}) {
      Attempts run({.max_retries = -1});
      DOCTEST_CHECK(run.damage(lost, Work::fresh, apart).retry);
      DOCTEST_CHECK(run.damage(lost, work, apart).retry);
      DOCTEST_CHECK(run.damage(lost, work, apart).retry);
      const auto last = run.damage(lost, work, apart);
      DOCTEST_CHECK_FALSE(last.retry);
      DOCTEST_CHECK(says(last, "no progress in 3 restarts"));
    }
  Attempts patient({.max_retries = -1, .fruitless_restarts = -1});
  for (int i = 0; i < 100; ++i) DOCTEST_REQUIRE(patient.damage(lost, Work::none, 1h).retry);
}

DOCTEST_TEST_CASE("restarts in place and attempts count together when there is no progress") {
  Attempts run({.max_retries = -1});
  DOCTEST_CHECK(run.damage(lost, Work::fresh, 1h).retry);
  DOCTEST_CHECK(run.fail(lost, Work::repeated, 1h).retry);
  DOCTEST_CHECK(run.damage(lost, Work::none, 1h).retry);
  DOCTEST_CHECK(says(run.fail(lost, Work::repeated, 1h), "no progress in 3 restarts"));
}

DOCTEST_TEST_CASE("progress after a restart in place makes good for those before it") {
  Attempts run({.max_retries = -1});
  for (int i = 0; i < 50; ++i) {
    DOCTEST_REQUIRE(run.damage(lost, Work::none, 1h).retry);
    DOCTEST_REQUIRE(run.damage(lost, Work::repeated, 1h).retry);
    const auto fresh = run.damage(lost, Work::fresh, 1h);
    DOCTEST_REQUIRE(fresh.retry);
    DOCTEST_CHECK(fresh.delay == 0ms);
  }
  // And what came before the latest restart does not help the next one.
  DOCTEST_CHECK(run.damage(lost, Work::none, 1h).retry);
  DOCTEST_CHECK(run.damage(lost, Work::none, 1h).retry);
  DOCTEST_CHECK_FALSE(run.damage(lost, Work::none, 1h).retry);
}

DOCTEST_TEST_CASE("workers that die as fast as they are replaced in place are a crash loop") {
  Attempts run({.max_retries = -1});
  DOCTEST_CHECK(run.damage(lost, Work::fresh).retry);
  for (int i = 0; i < 5; ++i) {
    const auto decision = run.damage(lost);
    DOCTEST_CHECK(decision.retry);
    DOCTEST_CHECK(decision.delay == 100ms * (1 << i));
  }
  DOCTEST_CHECK(says(run.damage(lost), "crash loop: 5 restarts within 60 s"));
}

DOCTEST_TEST_CASE("the budgets hold in place") {
  Attempts few({.max_retries = 2});
  for (int i = 0; i < 2; ++i) DOCTEST_CHECK(few.damage(lost, Work::fresh).retry);
  DOCTEST_CHECK(says(few.damage(lost, Work::fresh), "max_retries = 2 is used up"));
  DOCTEST_CHECK_FALSE(few.damage(threw_after_step(1), Work::fresh).retry);
  DOCTEST_CHECK(few.damage(preempted).retry);
  DOCTEST_CHECK_FALSE(few.damage(fatal).retry);
}

DOCTEST_TEST_CASE("a crash loop ends the run after five restarts in a minute") {
  Attempts run({.max_retries = -1});
  for (int i = 0; i < 5; ++i) DOCTEST_CHECK(run.fail(lost).retry);
  const auto last = run.fail(lost);
  DOCTEST_CHECK_FALSE(last.retry);
  DOCTEST_CHECK(says(last, "crash loop: 5 restarts within 60 s"));
}

DOCTEST_TEST_CASE("a crash loop ends however long the pauses between its restarts are") {
  Attempts run({.max_retries = -1, .first_delay = 20s, .longest_delay = 60s});
  for (int i = 0; i < 5; ++i) {
    const auto decision = run.fail(lost);
    DOCTEST_CHECK(decision.retry);
    run.now += decision.delay;
  }
  DOCTEST_CHECK(run.fail(lost).reason == "crash loop: 5 restarts in a row that died at once");
}

DOCTEST_TEST_CASE("early deaths now and then between long attempts are no crash loop") {
  Attempts run({.max_retries = -1, .fruitless_restarts = -1});
  for (int i = 0; i < 50; ++i) {
    DOCTEST_REQUIRE(run.fail(lost, Work::none, 1h).retry);
    DOCTEST_REQUIRE(run.fail(lost).retry);
  }
}

DOCTEST_TEST_CASE("no progress in three restarts ends the run") {
  for (auto lasted : {Duration(1s), Duration(1h)}) {
    Attempts run({.max_retries = -1});
    DOCTEST_CHECK(run.fail(lost, Work::fresh, lasted).retry);
    DOCTEST_CHECK(run.fail(lost, Work::repeated, lasted).retry);
    DOCTEST_CHECK(run.fail(lost, Work::repeated, lasted).retry);
    const auto last = run.fail(lost, Work::repeated, lasted);
    DOCTEST_CHECK_FALSE(last.retry);
    DOCTEST_CHECK(says(last, "no progress in 3 restarts"));
  }
}

DOCTEST_TEST_CASE("long attempts that never report are fruitless too") {
  Attempts run({.max_retries = -1});
  for (int i = 0; i < 3; ++i) DOCTEST_CHECK(run.fail(lost, Work::none, 1h).retry);
  DOCTEST_CHECK(says(run.fail(lost, Work::none, 1h), "no progress in 3 restarts"));
  Attempts patient({.max_retries = -1, .fruitless_restarts = -1});
  for (int i = 0; i < 100; ++i) DOCTEST_REQUIRE(patient.fail(lost, Work::none, 1h).retry);
}

DOCTEST_TEST_CASE("one restart that gets on makes good for those before it") {
  Attempts run({.max_retries = -1});
  for (int i = 0; i < 50; ++i) {
    DOCTEST_REQUIRE(run.fail(lost, Work::repeated).retry);
    DOCTEST_REQUIRE(run.fail(lost, Work::repeated).retry);
    DOCTEST_REQUIRE(run.fail(lost, Work::fresh).retry);
  }
}

DOCTEST_TEST_CASE("progress clears the window and the back-off") {
  Attempts run({.max_retries = -1});
  for (int i = 0; i < 20; ++i) {
    const auto decision = run.fail(lost, Work::fresh, 1ms);
    DOCTEST_REQUIRE(decision.retry);
    DOCTEST_CHECK(decision.delay == 0ms);
  }
}

DOCTEST_TEST_CASE("the back-off doubles from the second restart on and has a longest") {
  Attempts run({.max_retries = -1, .window_restarts = 1000, .fruitless_restarts = -1});
  std::vector<long> delays;
  for (int i = 0; i < 10; ++i) delays.push_back(run.fail(lost).delay.count());
  DOCTEST_CHECK(delays == std::vector<long>{0, 100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000});
}

DOCTEST_TEST_CASE("preemptions cost no retry and have a window of their own") {
  Attempts run({.max_retries = 0, .window_preemptions = 10});
  for (int i = 0; i < 10; ++i) {
    const auto decision = run.fail(preempted);
    DOCTEST_REQUIRE(decision.retry);
    DOCTEST_CHECK(decision.delay == 0ms);
  }
  DOCTEST_CHECK(says(run.fail(preempted), "10 preemptions within 3600 s"));
  DOCTEST_CHECK(run.fail(preempted, Work::fresh).retry);
  DOCTEST_CHECK(run.policy.restarts().preemptions == 11);
  DOCTEST_CHECK(says(run.fail(lost), "max_retries = 0"));
}

DOCTEST_TEST_CASE("restarts of an earlier program count") {
  Attempts run({.max_retries = 2});
  run.policy.replay({run.now, 1, FailureKind::worker_lost, 1, "killed", -1, {true, {}, ""}});
  run.policy.replay({run.now, 2, FailureKind::preempted, 1, "taken", -1, {true, {}, ""}});
  run.policy.replay({run.now, 3, FailureKind::fatal, 1, "the end", -1, {false, {}, ""}});
  run.policy.replay({run.now, 3, FailureKind::resized, -1, "resize(3)", -1, {true, {}, ""}, true});
  DOCTEST_CHECK(run.policy.restarts().lost_workers == 1);
  DOCTEST_CHECK(run.policy.restarts().preemptions == 1);
  DOCTEST_CHECK(run.fail(lost).retry);
  DOCTEST_CHECK(says(run.fail(lost), "max_retries = 2"));
}

DOCTEST_TEST_CASE("progress that an earlier program made counts as that") {
  Attempts run({.max_retries = -1});
  Decision before{run.now, 1, FailureKind::worker_lost, 1, "killed", -1, {true, {}, ""}};
  before.decision.progressed = true;
  for (int i = 0; i < 5; ++i) run.policy.replay(before);
  for (int i = 0; i < 2; ++i) DOCTEST_CHECK(run.fail(lost, Work::repeated).retry);
  DOCTEST_CHECK(says(run.fail(lost, Work::repeated), "no progress in 3 restarts"));
}

DOCTEST_TEST_CASE("a decision tells whether there was progress before it") {
  Attempts run({.max_retries = -1});
  DOCTEST_CHECK_FALSE(run.fail(lost, Work::repeated).progressed);
  DOCTEST_CHECK(run.fail(lost, Work::fresh).progressed);
  DOCTEST_CHECK_FALSE(run.fail(lost, Work::repeated).progressed);
}

DOCTEST_TEST_CASE("the same exception at an unknown place ends a run only without progress in between") {
  Attempts run({.max_retries = -1, .retry_user_errors = true});
  const Failure threw{FailureKind::user_error, troupe::ErrorCode::user_code, 0, "no route to host", {}, 0};
  for (int i = 0; i < 3; ++i) DOCTEST_CHECK(run.fail(threw, Work::fresh).retry);
  DOCTEST_CHECK(says(run.fail(threw, Work::repeated), "the same exception"));
}

DOCTEST_TEST_CASE("an exception that ended an earlier program's attempt is known") {
  Attempts run({.max_retries = 5, .retry_user_errors = true});
  Decision before{run.now, 1, FailureKind::user_error, 0, "bad batch", -1, {true, {}, ""}, true};
  before.step = 5;
  run.policy.replay(before);
  DOCTEST_CHECK(run.damage(threw_after_step(6), Work::fresh).retry);
  run.policy.replay(before);
  DOCTEST_CHECK_FALSE(run.damage(threw_after_step(5), Work::fresh).retry);
}

DOCTEST_TEST_CASE("a decision is one line") {
  const Decision restart{{}, 2, FailureKind::worker_lost, 1, "killed by SIGKILL", 4, {true, 200ms, "restart 1 of 3"}};
  DOCTEST_CHECK(to_string(restart) ==
                "attempt 2 failed (lost worker): rank 1 killed by SIGKILL; restart 1 of 3 in 200 ms");
  const Decision end{{}, 1, FailureKind::user_error, -1, "bad", 4, {false, {}, "enough"}};
  DOCTEST_CHECK(to_string(end) == "attempt 1 failed (user error): bad; the run ends: enough");
  Decision of_group{{}, 1, FailureKind::resized, -1, "resize(3)", -1, {true, 0ms, "the group shrinks"}, true};
  DOCTEST_CHECK(to_string(of_group) == "resize(3); the group shrinks");
  of_group.decision.delay = 1s;
  DOCTEST_CHECK(to_string(of_group) == "resize(3); the group shrinks in 1000 ms");
}
