// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/failure_policy.hpp"

#include <doctest/doctest.h>

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

const Failure lost{FailureKind::worker_lost, troupe::ErrorCode::worker_lost, 1, "killed by SIGKILL", {}};
const Failure threw{FailureKind::user_error, troupe::ErrorCode::user_code, 0, "bad batch", {}};
const Failure fatal{FailureKind::fatal, troupe::ErrorCode::refused, 0, "other build", {}};

}  // namespace

DOCTEST_TEST_CASE("max_retries gives exactly that many restarts") {
  for (int max_retries : {0, 1, 3}) {
    FailurePolicy policy({.max_retries = max_retries});
    Time now{};
    for (int i = 0; i < max_retries; ++i) DOCTEST_CHECK(policy.decide(lost, now += 1h).retry);
    const auto last = policy.decide(lost, now += 1h);
    DOCTEST_CHECK_FALSE(last.retry);
    DOCTEST_CHECK(last.reason == "max_retries = " + std::to_string(max_retries) + " is used up");
  }
}

DOCTEST_TEST_CASE("max_retries of -1 has no limit") {
  FailurePolicy policy({.max_retries = -1});
  Time now{};
  for (int i = 0; i < 1000; ++i) DOCTEST_REQUIRE(policy.decide(lost, now += 1h).retry);
}

DOCTEST_TEST_CASE("user errors are retried only if asked, and from a budget of their own") {
  FailurePolicy strict({.max_retries = 3});
  DOCTEST_CHECK_FALSE(strict.decide(threw, Time{}).retry);
  FailurePolicy asked({.max_retries = 1, .retry_user_errors = true});
  DOCTEST_CHECK(asked.decide(threw, Time{}).retry);
  DOCTEST_CHECK(asked.decide(lost, Time{}).retry);
  DOCTEST_CHECK_FALSE(asked.decide(threw, Time{}).retry);
}

DOCTEST_TEST_CASE("fatal failures are never retried") {
  FailurePolicy policy({.max_retries = -1, .retry_user_errors = true});
  DOCTEST_CHECK_FALSE(policy.decide(fatal, Time{}).retry);
}

DOCTEST_TEST_CASE("a crash loop ends the run after five restarts in a minute") {
  FailurePolicy policy({.max_retries = -1});
  Time now{};
  for (int i = 0; i < 5; ++i) DOCTEST_CHECK(policy.decide(lost, now += 1s).retry);
  DOCTEST_CHECK_FALSE(policy.decide(lost, now += 1s).retry);
}

DOCTEST_TEST_CASE("restarts spread over more than the window are no crash loop") {
  FailurePolicy policy({.max_retries = -1});
  Time now{};
  for (int i = 0; i < 50; ++i) DOCTEST_REQUIRE(policy.decide(lost, now += 13s).retry);
}

DOCTEST_TEST_CASE("progress clears the window and the back-off") {
  FailurePolicy policy({.max_retries = -1});
  Time now{};
  for (int i = 0; i < 20; ++i) {
    const auto decision = policy.decide(lost, now += 1ms);
    DOCTEST_REQUIRE(decision.retry);
    DOCTEST_CHECK(decision.delay == 0ms);
    policy.progress();
  }
}

DOCTEST_TEST_CASE("the back-off doubles from the second restart on, up to its longest") {
  FailurePolicy policy({.max_retries = -1, .window_restarts = 1000});
  Time now{};
  std::vector<long> delays;
  for (int i = 0; i < 10; ++i) delays.push_back(policy.decide(lost, now += 1s).delay.count());
  DOCTEST_CHECK(delays == std::vector<long>{0, 100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000});
}
