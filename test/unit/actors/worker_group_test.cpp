// SPDX-License-Identifier: Apache-2.0
// The WorkerGroup actor when something else than the trainer ends it, or an alien registers.
#include <doctest/doctest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
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

void wait_in_hook() {
  const auto end = may_return.get_future();  // first: the next test has a promise of its own
  is_open.set_value();
  end.wait();
}

/// One thread rank with that hook.
std::shared_ptr<local::GroupSpec> spec_with(Fn hook) {
  is_open = {};
  under_way = {};
  may_return = {};
  auto spec = std::make_shared<local::GroupSpec>();
  spec->settings = detail::resolve_settings({.num_workers = 1, .placement = Placement::thread});
  spec->cpus = CpuLedger::instance()->open({1, 1, 1});
  spec->hook = detail::identify(reinterpret_cast<detail::AnyEntry>(hook.entry()));
  return spec;
}

}  // namespace

DOCTEST_TEST_CASE("calls under way are answered with an error when the worker group ends of itself") {
  const auto system = shared_system();
  const auto spec = spec_with(fn<tell_open>);
  auto view = std::make_shared<local::GroupView>(1, 1);
  auto queue = std::make_shared<local::CallQueue>();
  auto group = spawn_worker_group(*system, spawn_trainer(*system), spec, view, queue);
  is_open.get_future().wait();  // a group that sets workers up takes calls
  const WorkerHandle worker(std::make_shared<detail::ActorCallTarget>(view, queue, [](std::chrono::milliseconds) {}),
                            0);
  auto first = std::async(std::launch::async, [&] {
    worker.execute([] {
      const auto end = may_return.get_future();
      under_way.set_value();
      end.wait();
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

DOCTEST_TEST_CASE("a worker of another build or version is refused with both named") {
  wire::Registration alien{0, wire::protocol_version, detail::build_id(), 1};
  DOCTEST_SUBCASE("another build") { alien.build = "other build"; }
  DOCTEST_SUBCASE("another version") { alien.version = "troupe 0.0"; }
  const auto system = shared_system();
  caf::scoped_actor trainer{*system};
  const auto self = caf::actor_cast<caf::strong_actor_ptr>(trainer);
  const auto group = spawn_worker_group(*system, caf::actor_cast<TrainerActor>(self), spec_with(fn<wait_in_hook>),
                                        std::make_shared<local::GroupView>(1, 1), std::make_shared<local::CallQueue>());
  is_open.get_future().wait();  // it waits to be set up
  // Tokens of threads are numbers from 2^63 on; other tests have had some. Those that nobody has are passed over.
  for (int i = 0; i < 100; ++i) {
    alien.token = (std::uint64_t{1} << 63) + static_cast<std::uint64_t>(i);
    compat::post(group, alien, self);
  }
  std::optional<engine::Failure> failure;
  trainer->receive([&](const local::GroupUp& up) { failure = up.failure; },
                   caf::after(std::chrono::seconds(30)) >> [] {});
  caf::anon_send_exit(group, caf::exit_reason::kill);
  may_return.set_value();
  DOCTEST_REQUIRE(failure);
  DOCTEST_CHECK(failure->code == ErrorCode::refused);
  DOCTEST_CHECK(failure->rank == 0);
  DOCTEST_CHECK(failure->text.find("runs " + alien.version + " of build " + alien.build) != std::string::npos);
}

}  // namespace troupe::test
