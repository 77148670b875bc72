// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <stdexcept>

#include "runtime/base/timed_out.hpp"

using troupe::detail::says_timed_out;

DOCTEST_TEST_CASE("an operation that timed out is told from a connection that the system gave up") {
  DOCTEST_CHECK(says_timed_out(std::runtime_error("Timed out waiting 1000ms for recv operation to complete")));
  DOCTEST_CHECK(says_timed_out(std::runtime_error("Operation timed out!")));
  DOCTEST_CHECK_FALSE(says_timed_out(std::runtime_error("Read error [127.0.0.1]:4711: Connection timed out")));
  DOCTEST_CHECK_FALSE(says_timed_out(std::runtime_error("Connection closed by peer [127.0.0.1]:4711")));
}
