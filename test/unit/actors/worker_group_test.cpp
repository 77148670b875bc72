// SPDX-License-Identifier: Apache-2.0
// The WorkerGroup actor when something else than the trainer ends it.
#include <doctest/doctest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include <troupe/error.hpp>
#include <troupe/fn.hpp>
#include <troupe/worker_group.hpp>

#include "actors/protocols.hpp"
#include "actors/system.hpp"
#include "runtime/actor_calls.hpp"

namespace troupe::test {
namespace {

std::promise<void> is_open;
std::promise<void> under_way;
std::promise<void> may_return;

void tell_open() { is_open.set_value(); }

}  // namespace

DOCTEST_TEST_CASE("calls under way are answered with an error when the worker group ends of itself") {
  const auto system = shared_system();
  auto spec = std::make_shared<local::GroupSpec>();
  spec->settings = detail::resolve_settings({.num_workers = 1, .placement = Placement::thread});
  spec->cpus = CpuLedger::instance()->open({1, 1, 1});
  spec->hook = detail::identify(reinterpret_cast<detail::AnyEntry>(fn<tell_open>.entry()));
  auto view = std::make_shared<local::GroupView>(1, 1);
  auto queue = std::make_shared<local::CallQueue>();
  auto group = spawn_worker_group(*system, spawn_trainer(*system), spec, view, queue);
  is_open.get_future().wait();  // a group that sets workers up takes calls
  const WorkerHandle worker(std::make_shared<detail::ActorCallTarget>(view, queue, [](std::chrono::milliseconds) {}),
                            0);
  auto first = std::async(std::launch::async, [&] {
    worker.execute([] {
      under_way.set_value();
      may_return.get_future().wait();
    });
  });
  under_way.get_future().wait();
  caf::anon_send_exit(group, caf::exit_reason::kill);  // no handler runs, as after an exception in one
  group = nullptr;
  try {
    first.get();
    DOCTEST_FAIL("the call has an answer");
  } catch (const Error& error) {
    DOCTEST_CHECK(error.code() == ErrorCode::worker_lost);
    DOCTEST_CHECK(error.what() == std::string("rank 0 did not answer the call: its group ended"));
    DOCTEST_CHECK(error.rank() == 0);
  }
  may_return.set_value();
}

}  // namespace troupe::test
