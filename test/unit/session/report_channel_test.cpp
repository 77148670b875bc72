// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/report_channel.hpp"

#include <doctest/doctest.h>

#include <future>
#include <thread>
#include <troupe/error.hpp>

using troupe::detail::ReportChannel;

namespace {

void push(ReportChannel& channel, const std::string& text) {
  channel.push([&](std::string& out) { out += text; });
}

}  // namespace

DOCTEST_TEST_CASE("a burst holds all reports in order and wakes once") {
  int wakes = 0;
  ReportChannel channel({}, [&] { ++wakes; });
  for (const char* text : {"a", "bb", "ccc"}) push(channel, text);
  DOCTEST_CHECK(wakes == 1);
  const auto burst = channel.take();
  DOCTEST_CHECK(burst.bytes == "abbccc");
  DOCTEST_CHECK(burst.sizes == std::vector<std::uint32_t>{1, 2, 3});
  push(channel, "d");
  DOCTEST_CHECK(wakes == 2);
}

DOCTEST_TEST_CASE("a report waits until the consumer has released one") {
  ReportChannel channel({.reports = 2}, [] {});
  push(channel, "a");
  push(channel, "b");
  channel.take();
  auto third = std::async(std::launch::async, [&] { push(channel, "c"); });
  DOCTEST_CHECK(third.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  channel.release(1, 1);
  third.get();
  DOCTEST_CHECK(channel.take().bytes == "c");
}

DOCTEST_TEST_CASE("bytes bound the channel too, but one report always passes") {
  ReportChannel channel({.reports = 100, .bytes = 10}, [] {});
  push(channel, std::string(1000, 'x'));
  auto second = std::async(std::launch::async, [&] { push(channel, "y"); });
  DOCTEST_CHECK(second.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  channel.release(1, 1000);
  second.get();
  DOCTEST_CHECK(channel.take().sizes == std::vector<std::uint32_t>{1000, 1});
}

DOCTEST_TEST_CASE("stop ends a wait and refuses later reports") {
  ReportChannel channel({.reports = 1}, [] {});
  push(channel, "a");
  auto waiting = std::async(std::launch::async, [&] { push(channel, "b"); });
  channel.stop();
  DOCTEST_CHECK_THROWS_AS(waiting.get(), troupe::Stopped);
  DOCTEST_CHECK_THROWS_AS(push(channel, "c"), troupe::Stopped);
  DOCTEST_CHECK(channel.take().bytes == "a");
}
