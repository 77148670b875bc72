// SPDX-License-Identifier: Apache-2.0
// Things that must not grow: descriptors, threads, zombies and memory over many starts; memory under a slow consumer.
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "actors/node/node.hpp"
#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

struct Footprint {
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  int zombies = 0;
  double resident = 0;
};

/// Sanitizers keep freed memory for a while, so resident memory tells nothing.
bool is_sanitized() { return std::getenv("TROUPE_SANITIZED") != nullptr; }

Footprint footprint_of(pid_t pid) {
  return {open_descriptors(pid), thread_count(pid), zombies_of(pid), is_sanitized() ? 0 : resident_mb(pid)};
}

Json rank() { return train::world_rank(); }

void report_many(const Config& config) {
  const Json metrics = {{"x", 1}, {"text", std::string(config["bytes"].get<std::size_t>(), 'x')}};
  for (int i = 0; i < config["reports"]; ++i) train::report(metrics);
}

/// Runs with a callback that sleeps 1 ms every 100th round. Gives the largest growth of resident memory of any process
/// of the tree after the first tenth, in MB.
double growth_of_flood(int reports, std::size_t bytes) {
  TestTrainer trainer({.num_workers = 2});
  trainer->start();
  std::map<pid_t, double> early;
  double growth = 0;
  int rounds = 0;
  auto slow = std::make_shared<FunctionCallback>();
  slow->on_result = [&](const auto&, const auto&) {
    rounds += 1;
    if (rounds % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (rounds % (reports / 10) != 0) return;
    for (auto pid : process_tree(::getpid())) {
      const double now = is_sanitized() ? 0 : resident_mb(pid);
      if (rounds == reports / 10) early[pid] = now;
      growth = std::max(growth, now - early[pid]);
    }
  };
  trainer->run(fn<report_many>, {.config = {{"reports", reports}, {"bytes", bytes}}, .callbacks = {slow}});
  DOCTEST_CHECK(rounds == reports);
  DOCTEST_CHECK(early.size() == 4);  // driver, fork server, two workers
  return growth;
}

}  // namespace

DOCTEST_TEST_CASE("a hundred starts and shutdowns leave nothing behind") {
  TestTrainer reused({.num_workers = 2});
  const auto cycle = [&](bool fresh) {
    std::optional<TestTrainer> other;
    if (fresh) other.emplace(TrainerOptions{.num_workers = 2});
    Trainer& trainer = fresh ? **other : *reused;
    trainer.start();
    const bool good = trainer.run(fn<rank>).at(1) == 1;
    trainer.shutdown();
    return good;
  };
  for (int i = 0; i < 10; ++i) DOCTEST_REQUIRE(cycle(i % 2 == 0));
  const auto server = node::Node::instance().fork_server_pid();
  const auto before = footprint_of(::getpid());
  const auto server_before = footprint_of(server);
  bool good = true;
  for (int i = 0; i < 100; ++i) good = good && cycle(i % 2 == 0);
  DOCTEST_CHECK(good);
  DOCTEST_CHECK(node::Node::instance().fork_server_pid() == server);
  // CAF closes its sockets and ends its threads a moment later, so one or two may be left of the last cycle.
  auto after = footprint_of(::getpid());
  for (const auto end = std::chrono::steady_clock::now() + patience;
       (after.descriptors > before.descriptors + 4 || after.threads > before.threads + 2) &&
       std::chrono::steady_clock::now() < end;)
    after = footprint_of(::getpid());
  const auto server_after = footprint_of(server);
  DOCTEST_CHECK(after.descriptors <= before.descriptors + 4);
  DOCTEST_CHECK(after.threads <= before.threads + 2);
  DOCTEST_CHECK(after.zombies == 0);
  DOCTEST_CHECK(after.resident < before.resident + 4);
  DOCTEST_CHECK(server_after.descriptors <= server_before.descriptors + 1);
  DOCTEST_CHECK(server_after.threads == 1);
  DOCTEST_CHECK(server_after.zombies == 0);
  DOCTEST_CHECK(server_after.resident < server_before.resident + 1);
  DOCTEST_CHECK(process_tree(::getpid()).size() == 2);
}

DOCTEST_TEST_CASE("sixty-four workers start and run and go") {
  TestTrainer trainer({.num_workers = 64});
  trainer->start();
  const auto pids = trainer->worker_pids();
  DOCTEST_CHECK(std::set<int>(pids.begin(), pids.end()).size() == 64);
  auto recorder = std::make_shared<Recorder>();
  const auto results = trainer->run(
      [] {
        train::report({{"rank", train::world_rank()}});
        return train::world_rank();
      },
      {.callbacks = {recorder}});
  DOCTEST_REQUIRE(results.size() == 64);
  bool in_order = recorder->rounds.size() == 1;
  for (int i = 0; i < 64; ++i) in_order = in_order && results[static_cast<std::size_t>(i)] == i;
  DOCTEST_CHECK(in_order);
  trainer->shutdown();
  DOCTEST_CHECK(process_tree(::getpid()).size() == 2);
}

DOCTEST_TEST_CASE("memory stays flat when 200000 reports meet a slow callback") {
  DOCTEST_CHECK(growth_of_flood(200'000, 10) < 8);
}

DOCTEST_TEST_CASE("memory stays flat when 200000 reports of 10 kB meet a slow callback") {
  DOCTEST_CHECK(growth_of_flood(200'000, 10'000) < 8);
}

}  // namespace troupe::test
