// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <set>
#include <string>

#include <troupe/error.hpp>

DOCTEST_TEST_CASE("every error code has a name of its own") {
  // They are numbered without gaps, and the compiler names one that to_string() forgot: the first unknown is the end.
  const auto name = [](int code) { return troupe::to_string(static_cast<troupe::ErrorCode>(code)); };
  std::set<std::string_view> names;
  int count = 0;
  while (name(count) != "unknown") names.insert(name(count++));
  DOCTEST_CHECK(count > static_cast<int>(troupe::ErrorCode::group_lost));
  DOCTEST_CHECK(names.size() == static_cast<std::size_t>(count));
}

DOCTEST_TEST_CASE("a code from elsewhere that nobody knows is unknown") {
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): the point of the test
  DOCTEST_CHECK(troupe::to_string(static_cast<troupe::ErrorCode>(200)) == "unknown");
}

DOCTEST_TEST_CASE("an error keeps code, text and rank") {
  const troupe::Error error(troupe::ErrorCode::user_code, "loss is NaN", 3);
  DOCTEST_CHECK(error.code() == troupe::ErrorCode::user_code);
  DOCTEST_CHECK(std::string(error.what()) == "loss is NaN");
  DOCTEST_CHECK(error.rank() == 3);
  DOCTEST_CHECK(troupe::Interrupted("ended by Ctrl-C", 2).exit_code() == 130);
}
