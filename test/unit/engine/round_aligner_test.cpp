// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/round_aligner.hpp"

#include <doctest/doctest.h>

using namespace troupe::engine;
using namespace std::chrono_literals;
using Round = std::vector<std::string>;

DOCTEST_TEST_CASE("a round is complete when every rank has reported it, in rank order") {
  RoundAligner aligner({.world_size = 3});
  aligner.add(2, "c1", Time{});
  aligner.add(0, "a1", Time{});
  aligner.add(0, "a2", Time{});
  DOCTEST_CHECK_FALSE(aligner.take());
  aligner.add(1, "b1", Time{});
  DOCTEST_CHECK(aligner.take() == Round{"a1", "b1", "c1"});
  DOCTEST_CHECK_FALSE(aligner.take());
  aligner.add(1, "b2", Time{});
  aligner.add(2, "c2", Time{});
  DOCTEST_CHECK(aligner.take() == Round{"a2", "b2", "c2"});
}

DOCTEST_TEST_CASE("ranks that return after equally many reports are in order") {
  RoundAligner aligner({.world_size = 2});
  for (int rank : {0, 1}) aligner.add(rank, "x", Time{});
  aligner.take();
  aligner.finish(0);
  aligner.finish(1);
  DOCTEST_CHECK_FALSE(aligner.check(Time{}));
}

DOCTEST_TEST_CASE("a rank that returned with fewer reports than another has sent is named with all counts") {
  RoundAligner aligner({.world_size = 2});
  aligner.finish(1);
  DOCTEST_CHECK_FALSE(aligner.check(Time{}));
  aligner.add(0, "x", Time{});
  const auto failure = aligner.check(Time{});
  DOCTEST_REQUIRE(failure);
  DOCTEST_CHECK(failure->code == troupe::ErrorCode::unequal_reports);
  DOCTEST_CHECK(failure->rank == 1);
  DOCTEST_CHECK(failure->text.find("rank 0: 1, rank 1: 0") != std::string::npos);
}

DOCTEST_TEST_CASE("a rank that returned with reports still waiting for others is in order") {
  RoundAligner aligner({.world_size = 2});
  aligner.add(0, "x", Time{});
  aligner.finish(0);
  DOCTEST_CHECK_FALSE(aligner.check(Time{}));
  aligner.finish(1);
  DOCTEST_CHECK(aligner.check(Time{}));
}

DOCTEST_TEST_CASE("a rank that is out of credit for the report deadline is an error, earlier it is not") {
  RoundAligner aligner({.world_size = 2, .window_reports = 3, .report_deadline = 10s});
  Time now{};
  aligner.add(0, "1", now);
  aligner.add(0, "2", now += 1s);
  DOCTEST_CHECK_FALSE(aligner.deadline());
  aligner.add(0, "3", now += 1s);
  DOCTEST_REQUIRE(aligner.deadline());
  DOCTEST_CHECK(*aligner.deadline() == now + 10s);
  DOCTEST_CHECK_FALSE(aligner.check(now + 9999ms));
  DOCTEST_CHECK(aligner.check(now + 10s));
}

DOCTEST_TEST_CASE("a completed round ends the wait of a rank that was out of credit") {
  RoundAligner aligner({.world_size = 2, .window_reports = 2, .report_deadline = 10s});
  Time now{};
  aligner.add(0, "1", now);
  aligner.add(0, "2", now);
  DOCTEST_CHECK(aligner.deadline());
  aligner.add(1, "1", now + 9s);
  DOCTEST_CHECK(aligner.take());
  DOCTEST_CHECK_FALSE(aligner.deadline());
  DOCTEST_CHECK_FALSE(aligner.check(now + 1h));
}

DOCTEST_TEST_CASE("bytes use credit up too") {
  RoundAligner aligner({.world_size = 2, .window_bytes = 100, .report_deadline = 10s});
  aligner.add(0, std::string(99, 'x'), Time{});
  DOCTEST_CHECK_FALSE(aligner.deadline());
  aligner.add(0, "x", Time{});
  DOCTEST_CHECK(aligner.deadline());
}

DOCTEST_TEST_CASE("the counts of many ranks are cut short") {
  RoundAligner aligner({.world_size = 100});
  aligner.finish(7);
  aligner.add(0, "x", Time{});
  DOCTEST_CHECK(aligner.check(Time{})->text.find("and 84 more ranks") != std::string::npos);
}
