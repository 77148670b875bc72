// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <set>
#include <string>

#include <troupe/error.hpp>

DOCTEST_TEST_CASE("every error code has a name of its own") {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(troupe::ErrorCode::io); ++code)
    names.insert(troupe::to_string(static_cast<troupe::ErrorCode>(code)));
  DOCTEST_CHECK(names.size() == static_cast<std::size_t>(troupe::ErrorCode::io) + 1);
  DOCTEST_CHECK(names.count("unknown") == 0);
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
