// SPDX-License-Identifier: Apache-2.0
#include "actors/call_queue.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace troupe;
using local::CallQueue;

namespace {

struct Answers {
  std::vector<std::string> errors;

  local::PendingCall call(int rank) {
    return {rank, {}, {}, [this](std::string, std::exception_ptr error) {
              try {
                if (error) std::rethrow_exception(error);
              } catch (const Error& what) {
                errors.emplace_back(what.what());
              }
            }};
  }
};

}  // namespace

DOCTEST_TEST_CASE("the group is woken once for calls that come together") {
  CallQueue queue;
  Answers answers;
  int woken = 0;
  queue.open([&] { ++woken; });
  queue.push(answers.call(0));
  queue.push(answers.call(1));
  DOCTEST_CHECK(woken == 1);
  DOCTEST_CHECK(queue.take().size() == 2);
  queue.push(answers.call(1));
  DOCTEST_CHECK(woken == 2);
  DOCTEST_CHECK(answers.errors.empty());
}

DOCTEST_TEST_CASE("a call that no group took is answered when the queue closes, and a later one at once") {
  CallQueue queue;
  Answers answers;
  queue.open([] {});
  queue.push(answers.call(0));
  queue.close();
  DOCTEST_REQUIRE(answers.errors.size() == 1);
  DOCTEST_CHECK(answers.errors.front().find("the trainer was shut down") != std::string::npos);
  queue.push(answers.call(0));
  DOCTEST_CHECK(answers.errors.size() == 2);
  DOCTEST_CHECK(queue.take().empty());
}
