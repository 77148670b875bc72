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

DOCTEST_TEST_CASE("every message arrives as it was sent") {
  Fixture fixture;
  const auto arrives_alike = [&](const auto& message) { DOCTEST_CHECK((fixture.travel(message) == message)); };
  const auto arrives = [&](const auto&... messages) { (arrives_alike(messages), ...); };
  const wire::Ranks ranks{1, 2, 3, 4, 5};
  const wire::CheckpointPlace place{21, 22, {23, 24, "x"}, "folder", {"a", "b"}};
  // To a worker.
  arrives(wire::BlobPart{7, 8, std::string("a\0b", 3)},
          wire::Setup{ranks, 6, {"A=1", "B"}, "/", "torch", "{}", function, {"beef", 43}, {9, 10, "x"}},
          wire::Form{1, ranks},
          wire::RunRequest{1, function, {0, 1, "c"}, 1, 2, 3, 4, "checkpoints", place, ranks, 1, 2, "results"},
          wire::Credit{1, 2, 3}, wire::Halt{5}, wire::PreemptionNotice{1, 2, -3}, wire::Resume{1, ranks},
          wire::CheckpointAnswer{1, 2, place, "no space"},
          wire::Calls{{{1, function, {0, 1, "a"}}, {2, function, {0, 1, "b"}}}}, wire::StoreAnswer{1, 1, "value", -4});
  // From a worker, or both ways.
  arrives(wire::Registration{1, "troupe/1", "c0ffee", 4711}, wire::SetupDone{1, 1, 5, "hook"},
          wire::FormDone{1, 2, 1, 3, "no peer"}, wire::Reports{1, 2, {3, 4}, {0, 7, "abcdefg"}, 5, 1, 6},
          wire::RankDone{1, 2, 3, 4, {0, 1, "r"}, 1}, wire::Replies{1, {{2, 1, 3, {0, 1, "x"}}}},
          wire::CheckpointPart{1, 2, 3, 4, 5, {6, 7, "m"}, {8, 9, "b"}, "memory", {10, 11, "w"}, "error", 12},
          wire::Live{1, 2, 1}, wire::Held{1, 2, 3, "why", 1, 4}, wire::Progress{1, 2, -3}, wire::Saving{1, 2},
          wire::AwaitsSave{1, 2, 3}, wire::Preempted{1}, wire::Pong{1, 2, 3, 4, 5, 1, "all_reduce()", 6},
          wire::StoreRequest{1, 2, 3, {"a", "b"}, "value", -4, 5});
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
