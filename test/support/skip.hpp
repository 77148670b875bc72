// SPDX-License-Identifier: Apache-2.0
// Tests that cannot run on this machine, or in this build.
#pragma once

#include <doctest/doctest.h>

#include <iostream>
#include <string>

namespace troupe::test {

/// Says why a test case, or a part of it, cannot run here: ctest lists it as skipped if nothing in it fails.
inline void skip(const std::string& why) {
  std::cout << "SKIPPED: " << why << std::endl;
  DOCTEST_CHECK_FALSE(why.empty());  // a case without an assertion fails
}

}  // namespace troupe::test
