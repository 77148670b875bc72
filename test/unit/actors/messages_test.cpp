// SPDX-License-Identifier: Apache-2.0
// Every wire type goes through a serializer and back: CAF 0.17 only prints a line when a type is not registered, and
// the message is lost.
#include "actors/messages.hpp"

#include <doctest/doctest.h>

#include "actors/blob.hpp"
#include "actors/protocols.hpp"
#include "actors/system.hpp"

using namespace troupe;

namespace {

struct Fixture {
  Fixture() { add_to_config(config); }

  /// The value as it arrives in another process.
  template <class T>
  T travel(const T& value) {
    caf::actor_system system{config};
    auto sent = caf::make_message(value);
#if TROUPE_CAF_LEGACY
    caf::binary_serializer::container_type buffer;
    caf::binary_serializer sink{system, buffer};
    DOCTEST_REQUIRE_FALSE(inspect(sink, sent));
    caf::message received;
    caf::binary_deserializer source{system, buffer};
    DOCTEST_REQUIRE_FALSE(inspect(source, received));
#else
    caf::byte_buffer buffer;
    caf::binary_serializer sink{system, buffer};
    DOCTEST_REQUIRE(sink.apply(sent));
    caf::message received;
    caf::binary_deserializer source{system, buffer};
    DOCTEST_REQUIRE(source.apply(received));
#endif
    DOCTEST_REQUIRE(received.match_elements<T>());
    return received.get_as<T>(0);
  }

  caf::actor_system_config config;
};

const wire::FunctionId function{"c0ffee", 42};

}  // namespace

DOCTEST_TEST_CASE("every message to a worker arrives as it was sent") {
  Fixture fixture;
  const auto part = fixture.travel(wire::BlobPart{7, 8, std::string("a\0b", 3)});
  DOCTEST_CHECK(part.token == 7);
  DOCTEST_CHECK(part.id == 8);
  DOCTEST_CHECK(part.bytes.size() == 3);

  const auto setup = fixture.travel(
      wire::Setup{{1, 2, 3, 4, 5}, 6, {"A=1", "B"}, "/", "torch", "{}", function, function, {9, 10, "x"}});
  DOCTEST_CHECK(setup.ranks.world_rank == 1);
  DOCTEST_CHECK(setup.ranks.local_rank == 2);
  DOCTEST_CHECK(setup.ranks.node_rank == 3);
  DOCTEST_CHECK(setup.ranks.world_size == 4);
  DOCTEST_CHECK(setup.ranks.local_world_size == 5);
  DOCTEST_CHECK(setup.threads == 6);
  DOCTEST_CHECK(setup.environment == std::vector<std::string>{"A=1", "B"});
  DOCTEST_CHECK(setup.backend == "torch");
  DOCTEST_CHECK(setup.hook.offset == 42);
  DOCTEST_CHECK(setup.object.build == "c0ffee");
  DOCTEST_CHECK(setup.object_arguments.bytes == "x");

  const auto run = fixture.travel(wire::RunRequest{1, function, {0, 1, "c"}, 1, 2, 3});
  DOCTEST_CHECK(run.generation == 1);
  DOCTEST_CHECK(run.function.offset == 42);
  DOCTEST_CHECK(run.config.bytes == "c");
  DOCTEST_CHECK(run.detailed_metrics == 1);
  DOCTEST_CHECK(run.window_reports == 2);
  DOCTEST_CHECK(run.window_bytes == 3);

  const auto credit = fixture.travel(wire::Credit{1, 2, 3});
  DOCTEST_CHECK(credit.generation == 1);
  DOCTEST_CHECK(credit.reports == 2);
  DOCTEST_CHECK(credit.bytes == 3);
  DOCTEST_CHECK(fixture.travel(wire::Halt{5}).generation == 5);

  const auto calls = fixture.travel(wire::Calls{{{1, function, {0, 1, "a"}}, {2, function, {0, 1, "b"}}}});
  DOCTEST_REQUIRE(calls.calls.size() == 2);
  DOCTEST_CHECK(calls.calls[1].id == 2);
  DOCTEST_CHECK(calls.calls[1].arguments.bytes == "b");
}

DOCTEST_TEST_CASE("every message from a worker arrives as it was sent") {
  Fixture fixture;
  const auto registration = fixture.travel(wire::Registration{1, "troupe/1", "c0ffee", 4711});
  DOCTEST_CHECK(registration.token == 1);
  DOCTEST_CHECK(registration.version == "troupe/1");
  DOCTEST_CHECK(registration.build == "c0ffee");
  DOCTEST_CHECK(registration.pid == 4711);

  const auto setup = fixture.travel(wire::SetupDone{1, 1, 5, "hook"});
  DOCTEST_CHECK(setup.failed == 1);
  DOCTEST_CHECK(setup.code == 5);
  DOCTEST_CHECK(setup.error == "hook");

  const auto reports = fixture.travel(wire::Reports{1, 2, {3, 4}, {0, 7, "abcdefg"}});
  DOCTEST_CHECK(reports.generation == 2);
  DOCTEST_CHECK(reports.sizes == std::vector<std::uint32_t>{3, 4});
  DOCTEST_CHECK(reports.bytes.bytes == "abcdefg");

  const auto done = fixture.travel(wire::RankDone{1, 2, 3, 4, {0, 1, "r"}});
  DOCTEST_CHECK(done.token == 1);
  DOCTEST_CHECK(done.generation == 2);
  DOCTEST_CHECK(done.end == 3);
  DOCTEST_CHECK(done.code == 4);
  DOCTEST_CHECK(done.payload.bytes == "r");

  const auto awaits = fixture.travel(wire::AwaitsSave{1, 2, 3});
  DOCTEST_CHECK(awaits.token == 1);
  DOCTEST_CHECK(awaits.generation == 2);
  DOCTEST_CHECK(awaits.number == 3);

  const auto replies = fixture.travel(wire::Replies{1, {{2, 1, 3, {0, 1, "x"}}}});
  DOCTEST_REQUIRE(replies.replies.size() == 1);
  DOCTEST_CHECK(replies.replies[0].id == 2);
  DOCTEST_CHECK(replies.replies[0].failed == 1);
  DOCTEST_CHECK(replies.replies[0].payload.bytes == "x");
}

DOCTEST_TEST_CASE("a value in parts is put together, and missing parts are an error") {
  BlobInbox inbox;
  inbox.add({1, 7, "abc"});
  inbox.add({1, 8, "other"});
  inbox.add({1, 7, "def"});
  DOCTEST_CHECK(inbox.take({7, 6, {}}) == "abcdef");
  DOCTEST_CHECK(inbox.take({0, 2, "xy"}) == "xy");
  DOCTEST_CHECK_THROWS_AS(inbox.take({7, 6, {}}), Error);
  DOCTEST_CHECK_THROWS_AS(inbox.take({8, 6, {}}), Error);
}

DOCTEST_TEST_CASE("a system that was not configured is refused with the remedy") {
#if !TROUPE_CAF_LEGACY
  caf::core::init_global_meta_objects();  // without these CAF makes no system at all
#endif
  caf::actor_system_config bare;
  caf::actor_system without_middleman{bare};
  DOCTEST_CHECK_THROWS_WITH(require_configured(without_middleman), doctest::Contains("troupe::configure"));
#if TROUPE_CAF_LEGACY
  caf::actor_system_config half;
  half.load<caf::io::middleman>();
  caf::actor_system without_types{half};
  DOCTEST_CHECK_THROWS_WITH(require_configured(without_types), doctest::Contains("message types"));
#endif
}

DOCTEST_TEST_CASE("the answer to a ping arrives as it was sent") {
  Fixture fixture;
  const auto pong = fixture.travel(wire::Pong{1, 2, 3, 4, 5, 1, "all_reduce()"});
  DOCTEST_CHECK(pong.token == 1);
  DOCTEST_CHECK(pong.generation == 2);
  DOCTEST_CHECK(pong.progress == 3);
  DOCTEST_CHECK(pong.rounds == 4);
  DOCTEST_CHECK(pong.compute_us == 5);
  DOCTEST_CHECK(pong.waits_for == 1);
  DOCTEST_CHECK(pong.doing == "all_reduce()");
}
