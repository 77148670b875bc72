// SPDX-License-Identifier: Apache-2.0
#include "actors/user_thread.hpp"

#include <doctest/doctest.h>

#include <string>

#include <troupe/error.hpp>

#include "actors/node/threads.hpp"
#include "test/support/no_threads.hpp"

namespace troupe::test {
namespace {

template <class Body>
std::string start_failure_of(Body&& body) {
  const NoThreads none;
  try {
    body();
  } catch (const Error& error) {
    return error.code() == ErrorCode::start_failed ? error.what() : "another code";
  }
  return "nothing was thrown";
}

}  // namespace

DOCTEST_TEST_CASE("a thread that the system does not have is an error that says what to change") {
  const auto user = start_failure_of([] { const UserThread thread; });
  DOCTEST_CHECK_MESSAGE(user.find("ulimit -u") != std::string::npos, user);
  const auto helper = start_failure_of([] { node::start_thread("troupe-test", [] {}).join(); });
  DOCTEST_CHECK_MESSAGE(helper.find("ulimit -u") != std::string::npos, helper);
}

}  // namespace troupe::test
