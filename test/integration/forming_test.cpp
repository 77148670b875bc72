// SPDX-License-Identifier: Apache-2.0
// Backends whose workers meet through the group's store: at the start, and again when a worker was replaced.
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

/// All workers meet in on_start() and see each other's process ids.
class MeetingBackend : public Backend {
public:
  void on_start(const BackendContext& context) override {
    const auto key = [&](int rank) { return "meeting/" + std::to_string(context.epoch) + "/" + std::to_string(rank); };
    context.store->set(key(context.world_rank), std::to_string(::getpid()));
    std::string seen;
    for (int rank = 0; rank < context.world_size; ++rank) seen += context.store->get(key(rank), patience) + " ";
    last_seen = seen;
  }

  static inline thread_local std::string last_seen;
};

const bool meeting_is_registered =
    register_backend("meeting", [](const Json&) { return std::make_unique<MeetingBackend>(); });

struct Counter {
  explicit Counter(int start) : value(start) {}
  int value;
};

}  // namespace

DOCTEST_TEST_CASE("workers meet through the store of their group") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.backend = "meeting", .num_workers = 3, .placement = placement});
    const auto results = trainer->run([]() -> Json { return MeetingBackend::last_seen; });
    DOCTEST_CHECK_FALSE(results[0].get<std::string>().empty());
    for (const auto& result : results) DOCTEST_CHECK(result == results[0]);
  });
}

DOCTEST_TEST_CASE("a replaced worker meets the others again, in the processes that are left") {
  TestTrainer trainer({.backend = "meeting", .num_workers = 3});
  const auto function = [](const Config& config) -> Json {
    if (train::world_rank() == 1 && is_first(config["folder"].get<std::string>(), "death")) ::kill(::getpid(), SIGKILL);
    train::report({{"pid", ::getpid()}});
    return MeetingBackend::last_seen;
  };
  trainer->start();
  const auto before = trainer->worker_pids();
  const auto results = trainer->run(function, {.config = {{"folder", trainer.folder().string()}}});
  const auto after = trainer->worker_pids();
  DOCTEST_CHECK(after[0] == before[0]);
  DOCTEST_CHECK(after[1] != before[1]);
  std::string expected;
  for (int pid : after) expected += std::to_string(pid) + " ";
  for (const auto& result : results) DOCTEST_CHECK(result == expected);
}

DOCTEST_TEST_CASE("an idle worker's replacement has its object, with a backend too") {
  TestTrainer trainer({.backend = "meeting", .num_workers = 2});
  trainer->start<Counter>(5);
  ::kill(trainer->worker_pids()[1], SIGKILL);
  // The call may meet the dying worker; the one after it meets its replacement.
  const auto read = [](Counter& counter) { return counter.value; };
  try {
    trainer->workers()[1].execute(read);
  } catch (const Error& error) {
    DOCTEST_CHECK(error.code() == ErrorCode::worker_lost);
  }
  DOCTEST_CHECK(trainer->workers()[1].execute(read) == 5);
  DOCTEST_CHECK(trainer->run([]() -> Json { return train::world_rank(); }) == std::vector<Json>{0, 1});
}

DOCTEST_TEST_CASE("a worker that waits for a key in vain fails the start and names the key") {
  struct Waiting : Backend {
    void on_start(const BackendContext& context) override {
      if (context.world_rank == 1) context.store->wait({"nobody/sets/this"}, std::chrono::milliseconds(100));
    }
  };
  static const bool registered = register_backend("waiting", [](const Json&) { return std::make_unique<Waiting>(); });
  DOCTEST_REQUIRE(registered);
  TestTrainer trainer({.backend = "waiting", .num_workers = 2, .placement = Placement::thread});
  const auto error = error_of([&] { trainer->start(); });
  DOCTEST_CHECK(error.rank == 1);
  DOCTEST_CHECK(error.says("nobody/sets/this"));
}

}  // namespace troupe::test
