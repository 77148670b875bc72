// SPDX-License-Identifier: Apache-2.0
// No message is above the cap, whatever the size of the values in it.
#include "actors/blob.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocols.hpp"
#include "actors/rank_calls.hpp"
#include "actors/system.hpp"

using namespace troupe;

namespace {

/// Stands for an actor: what it sends is measured as it would travel.
class Measuring {
public:
  struct Mail {
    Measuring* self;
    caf::message message;
    template <class Handle>
    void send(const Handle&) {
      self->measure(std::move(message));
    }
  };

  Measuring() { add_to_config(config_); }

  template <class Handle, class T>
  void send(const Handle&, T&& value) {
    measure(caf::make_message(std::forward<T>(value)));
  }
  template <class T>
  Mail mail(T&& value) {
    return Mail{this, caf::make_message(std::forward<T>(value))};
  }
  void measure(caf::message message) {
    if (!system_) system_.emplace(config_);
#if TROUPE_CAF_LEGACY
    caf::binary_serializer::container_type buffer;
    caf::binary_serializer sink{*system_, buffer};
    DOCTEST_REQUIRE_FALSE(inspect(sink, message));
#else
    caf::byte_buffer buffer;
    caf::binary_serializer sink{*system_, buffer};
    DOCTEST_REQUIRE(sink.apply(message));
#endif
    largest = std::max(largest, buffer.size());
    count += 1;
  }

  std::size_t largest = 0;
  std::size_t count = 0;

private:
  caf::actor_system_config config_;
  std::optional<caf::actor_system> system_;
};

const std::vector<std::size_t> sizes{1'000,   shared_blob_bytes, shared_blob_bytes + 1, blob_bytes, blob_bytes + 1,
                                     200'000, 1'000'000};

}  // namespace

DOCTEST_TEST_CASE("no message with several values is above the cap") {
  Measuring self;
  for (auto size : sizes) {
    const auto blob = [&] { return send_blob(&self, 0, 1, std::string(size, 'x'), shared_blob_bytes); };
    compat::tell(&self, 0, wire::CheckpointPart{1, 2, 3, 4, 5, blob(), blob(), "/proc/1/fd/2", blob(), "error", 6});
    wire::RunRequest request;
    request.config = blob();
    request.start = {1, 2, blob(), std::string(4096, 'f'), {}};
    compat::tell(&self, 0, std::move(request));
  }
  DOCTEST_CHECK(self.largest > wire::max_message_bytes / 2);
  DOCTEST_CHECK(self.largest <= wire::max_message_bytes);
}

DOCTEST_TEST_CASE("no message with one value, and no bundle of calls, is above the cap") {
  Measuring self;
  for (auto size : sizes)
    compat::tell(&self, 0, wire::RankDone{1, 2, 0, 0, send_blob(&self, 0, 1, std::string(size, 'x'))});
  DOCTEST_CHECK(self.largest <= wire::max_message_bytes);
  RankCalls calls;
  for (int round = 0; round < 3; ++round)
    for (auto size : sizes) calls.add({0, {}, std::string(size, 'x'), {}});
  calls.send(&self, WorkerActor(), 1);
  DOCTEST_CHECK(self.largest > wire::max_message_bytes / 2);
  DOCTEST_CHECK(self.largest <= wire::max_message_bytes);
}
