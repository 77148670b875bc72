// SPDX-License-Identifier: Apache-2.0
#include "actors/spare_pool.hpp"

#include <doctest/doctest.h>

using namespace std::chrono_literals;
using troupe::SparePool;

DOCTEST_TEST_CASE("a pool knows which of its spares should be connected first") {
  const auto now = troupe::engine::Time{} + 1h;
  SparePool pool(2);
  DOCTEST_CHECK_FALSE(pool.slowest());
  pool.add(7, now);
  pool.add(8, now + 1s);
  DOCTEST_REQUIRE(pool.slowest());
  DOCTEST_CHECK(pool.slowest()->token == 7);
  DOCTEST_CHECK(pool.slowest()->launched == now);
  pool.remove(7);
  DOCTEST_CHECK(pool.slowest()->token == 8);
  pool.remove(8);
  DOCTEST_CHECK_FALSE(pool.slowest());
  DOCTEST_CHECK(pool.wanted(now) == 2);
}
