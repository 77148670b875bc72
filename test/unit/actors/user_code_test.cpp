// SPDX-License-Identifier: Apache-2.0
#include "actors/user_code.hpp"

#include <doctest/doctest.h>

#include <iostream>
#include <streambuf>

namespace troupe::test {
namespace {

/// As on a full disk.
struct FullBuffer : std::streambuf {
  int sync() override { return -1; }
};

}  // namespace

DOCTEST_TEST_CASE("user code ends well in a program that lets its streams throw") {
  FullBuffer full;
  auto* const before = std::cout.rdbuf(&full);
  std::cout.exceptions(std::ios::badbit);
  const auto outcome = run_user_code([] { return std::string("done"); });
  std::cout.exceptions(std::ios::goodbit);
  std::cout.clear();
  std::cout.rdbuf(before);
  DOCTEST_CHECK(outcome.payload == "done");
}

}  // namespace troupe::test
