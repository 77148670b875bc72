// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/round_aligner.hpp"

#include <doctest/doctest.h>

using namespace troupe::engine;
using namespace std::chrono_literals;
using Round = std::vector<std::string>;

namespace {

std::optional<Round> take(RoundAligner& aligner) {
  auto round = aligner.take();
  return round ? std::optional(std::move(round->reports)) : std::nullopt;
}

}  // namespace

DOCTEST_TEST_CASE("a round is complete when every rank has reported it, in rank order") {
  RoundAligner aligner({.world_size = 3});
  aligner.add(2, "c1", Time{});
  aligner.add(0, "a1", Time{});
  aligner.add(0, "a2", Time{});
  DOCTEST_CHECK_FALSE(aligner.take());
  aligner.add(1, "b1", Time{});
  DOCTEST_CHECK(take(aligner) == Round{"a1", "b1", "c1"});
  DOCTEST_CHECK_FALSE(aligner.take());
  aligner.add(1, "b2", Time{});
  aligner.add(2, "c2", Time{});
  DOCTEST_CHECK(take(aligner) == Round{"a2", "b2", "c2"});
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
  for (int second = 0; second < 10; ++second) {
    DOCTEST_REQUIRE(*aligner.deadline() == now + 1s);  // it looks at the clock at least so often
    DOCTEST_CHECK_FALSE(aligner.check(now + 999ms));
    now += 1s;
    DOCTEST_CHECK(aligner.check(now).has_value() == (second == 9));
  }
}

DOCTEST_TEST_CASE("time that the driver did not live through is no reason to blame a rank") {
  RoundAligner aligner({.world_size = 2, .window_reports = 1, .report_deadline = 10s});
  aligner.add(0, "1", Time{});
  DOCTEST_CHECK_FALSE(aligner.check(Time{} + 1h));  // it was stopped
  DOCTEST_CHECK_FALSE(aligner.check(Time{} + 1h + 1s));
}

DOCTEST_TEST_CASE("only ranks that take part are counted and named, by the number they have now") {
  RoundAligner aligner({.world_size = 4});
  aligner.regroup({1, 3}, {});
  aligner.finish(3);
  aligner.add(1, "x", Time{});
  const auto failure = aligner.check(Time{});
  DOCTEST_REQUIRE(failure);
  DOCTEST_CHECK(failure->rank == 3);  // its place, for the group
  DOCTEST_CHECK(failure->text.find("rank 0: 1, rank 1: 0 (") != std::string::npos);
}

DOCTEST_TEST_CASE("whoever comes to the place of a rank that has returned has not returned") {
  RoundAligner aligner({.world_size = 3});
  for (int rank : {0, 1, 2}) aligner.add(rank, "1", Time{});
  take(aligner);
  aligner.finish(2);
  aligner.regroup({0, 1}, {});
  aligner.regroup({0, 1, 2}, {2});
  aligner.add(0, "2", Time{});
  DOCTEST_CHECK_FALSE(aligner.check(Time{}));
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

DOCTEST_TEST_CASE("time in which a lost rank was replaced is no reason to blame it") {
  RoundAligner aligner({.world_size = 2, .window_reports = 1, .report_deadline = 10s});
  Time now{};
  aligner.add(0, "1", now);
  for (int second = 0; second < 9; ++second) DOCTEST_CHECK_FALSE(aligner.check(now += 1s));
  aligner.regroup({0, 1}, {});  // rank 1 was lost, and had nothing to do with the reports
  for (int second = 0; second < 9; ++second) DOCTEST_CHECK_FALSE(aligner.check(now += 1s));
  DOCTEST_CHECK(aligner.check(now += 1s));
}

DOCTEST_TEST_CASE("ranks whose credit the consumer has are not blamed for their silence until it is done") {
  RoundAligner aligner({.world_size = 2, .window_bytes = 100, .report_deadline = 10s});
  Time now{};
  aligner.add(1, std::string(120, 'x'), now);
  aligner.add(0, "x", now);
  DOCTEST_CHECK(aligner.take());
  aligner.add(0, std::string(150, 'x'), now);  // rank 1 cannot
  for (int second = 0; second < 60; ++second) DOCTEST_CHECK_FALSE(aligner.check(now += 1s));
  DOCTEST_CHECK_FALSE(aligner.deadline());
  aligner.consumed(1);
  DOCTEST_CHECK(aligner.deadline());
  for (int second = 0; second < 9; ++second) DOCTEST_CHECK_FALSE(aligner.check(now += 1s));
  DOCTEST_CHECK(aligner.check(now += 1s));  // now it could
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

DOCTEST_TEST_CASE("a rank that was replaced goes on where the furthest of the others is") {
  RoundAligner aligner({.world_size = 3});
  for (const char* report : {"a1", "a2", "a3"}) aligner.add(0, report, Time{});
  aligner.add(1, "b1", Time{});
  for (const char* report : {"c1", "c2"}) aligner.add(2, report, Time{});
  DOCTEST_CHECK(take(aligner) == Round{"a1", "b1", "c1"});
  DOCTEST_CHECK_FALSE(take(aligner));
  aligner.regroup({0, 1, 2}, {1});
  DOCTEST_CHECK(take(aligner) == Round{"a2", "c2"});
  DOCTEST_CHECK_FALSE(take(aligner));  // rank 2 has not reported its third
  aligner.add(1, "b4", Time{});
  aligner.add(2, "c3", Time{});
  DOCTEST_CHECK(take(aligner) == Round{"a3", "c3"});
  DOCTEST_CHECK_FALSE(take(aligner));
  aligner.add(2, "c4", Time{});
  aligner.add(0, "a4", Time{});
  DOCTEST_CHECK(take(aligner) == Round{"a4", "b4", "c4"});
}

DOCTEST_TEST_CASE("what the replaced rank reported ahead of all others is reported again") {
  RoundAligner aligner({.world_size = 2});
  aligner.add(0, "a1", Time{});
  for (const char* report : {"b1", "b2"}) aligner.add(1, report, Time{});
  take(aligner);
  aligner.regroup({0, 1}, {1});
  aligner.add(1, "b2 again", Time{});
  aligner.add(0, "a2", Time{});
  DOCTEST_CHECK(take(aligner) == Round{"a2", "b2 again"});
}

DOCTEST_TEST_CASE("what a rank reported before it left is still delivered, and nobody waits for more of it") {
  RoundAligner aligner({.world_size = 3});
  for (int rank : {0, 1, 2}) aligner.add(rank, "x", Time{});
  take(aligner);
  aligner.add(2, "c2", Time{});
  aligner.regroup({0, 1}, {});
  aligner.add(0, "a2", Time{});
  DOCTEST_CHECK_FALSE(take(aligner));
  aligner.add(1, "b2", Time{});
  DOCTEST_CHECK(take(aligner) == Round{"a2", "b2", "c2"});
  for (int rank : {0, 1}) aligner.add(rank, "y", Time{});
  DOCTEST_CHECK(take(aligner) == Round{"y", "y"});
  aligner.finish(0);
  aligner.add(1, "z", Time{});
  DOCTEST_CHECK(aligner.check(Time{}));  // rank 0 ended short of rank 1
}

DOCTEST_TEST_CASE("a report that comes after its round went without the rank disturbs nobody") {
  RoundAligner aligner({.world_size = 2});
  for (int rank : {0, 1}) aligner.add(rank, "x", Time{});
  take(aligner);
  aligner.regroup({0}, {});
  aligner.add(0, "a2", Time{});
  DOCTEST_CHECK(take(aligner) == Round{"a2"});
  aligner.add(1, "b2", Time{});  // was on its way
  aligner.finish(1);
  aligner.add(0, "a3", Time{});
  DOCTEST_CHECK(take(aligner) == Round{"a3"});
  aligner.finish(0);
  DOCTEST_CHECK_FALSE(aligner.check(Time{}));
}
