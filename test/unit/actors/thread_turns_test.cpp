// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/thread_turns.hpp"

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <future>
#include <thread>

#include "actors/node/threads.hpp"
#include "actors/user_thread.hpp"
#include "test/support/skip.hpp"

namespace {

/// The kernel's struct sched_attr; 0 where it does not tell.
std::uint64_t turn_of_this_thread() {
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t turn_ns, deadline, period;
  } attributes{};
  return ::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 ? attributes.turn_ns : 0;
}

}  // namespace

DOCTEST_TEST_CASE("threads of the runtime take short turns, threads that compute the usual ones") {
  const auto usual = turn_of_this_thread();
  if (usual == 0) return troupe::test::skip("this kernel (before 6.12) has no turns of a thread's own");
  std::uint64_t helper = 0;
  std::uint64_t computing = 0;
  troupe::node::start_thread("troupe-test", [&] {
    helper = turn_of_this_thread();
    troupe::UserThread inner;  // made by a thread with short turns, as a worker's is
    std::promise<void> done;
    inner.post([&] {
      computing = turn_of_this_thread();
      done.set_value();
    });
    done.get_future().wait();
  }).join();
  DOCTEST_CHECK(helper == 100'000);
  DOCTEST_CHECK(computing == usual);
}
