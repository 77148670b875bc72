// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/rank_watch.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <utility>

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A group of workers that answer their pings, on virtual time.
struct Group {
  explicit Group(WatchLimits limits) : Group(limits, limits.liveness.world_size) {}
  /// Not all places have a worker.
  Group(WatchLimits limits, int workers, RankOfPlace rank_of = std::identity())
      : watch(limits, std::move(rank_of)), size(workers) {
    for (int rank = 0; rank < size; ++rank) watch.joined(rank, now);
  }

  /// Lets time pass; every rank that is asked answers, but for `mute`.
  void pass(Duration time, int mute = -1) {
    const auto end = now + time;
    while (now < end) {
      const auto next = watch.deadline();
      now = next ? std::clamp(*next, now, Time(end)) : Time(end);
      tick(mute);
      if (next && *next <= now && watch.deadline() == next) now += 1ms;  // a stand-still would be a bug of the watch
    }
  }
  void tick(int mute = -1) {
    auto step = watch.tick(now);
    for (auto& one : step.lost) lost.push_back(one);
    for (auto& one : step.replaced) replaced.push_back(one);
    for (auto& text : step.warnings) warnings.push_back(text);
    for (auto& one : step.slow) slow.push_back(one);
    pings += step.pings.size();
    for (int rank : step.pings)
      if (rank != mute) answer(rank);
  }
  void answer(int rank) {
    watch.answered(rank, now);
    if (runs) watch.stands(rank, standing.at(static_cast<std::size_t>(rank)), now);
  }
  void begin() {
    runs = true;
    standing.assign(static_cast<std::size_t>(size), {});
    watch.run_began();
    for (int rank = 0; rank < size; ++rank) watch.began(rank, now);
  }
  Standing& of(int rank) { return standing.at(static_cast<std::size_t>(rank)); }

  RankWatch watch;
  int size;
  Time now{};
  bool runs = false;
  std::vector<Standing> standing;
  std::vector<GivenUp> lost;
  std::vector<GivenUp> replaced;
  std::vector<std::string> warnings;
  std::vector<Stragglers::Slow> slow;
  std::size_t pings = 0;
};

WatchLimits two_ranks() { return {.liveness = {.world_size = 2}}; }

}  // namespace

DOCTEST_TEST_CASE("workers that answer are never given up") {
  Group group(two_ranks());
  group.pass(24h);
  DOCTEST_CHECK(group.lost.empty());
  DOCTEST_CHECK(group.pings == 2 * (24 * 60 * 60 + 1));
}

DOCTEST_TEST_CASE("a silent worker is given up after its deadline, and not before") {
  Group group(two_ranks());
  group.pass(5s);
  group.pass(9s, 1);
  DOCTEST_CHECK(group.lost.empty());
  group.pass(2s, 1);
  DOCTEST_REQUIRE(group.lost.size() == 1);
  DOCTEST_CHECK(group.lost[0].rank == 1);
  DOCTEST_CHECK(group.lost[0].cause == "silent: its control thread did not answer for 10 s (ping_deadline)");
  group.pass(60s, 1);
  DOCTEST_CHECK(group.lost.size() == 1);
  group.watch.left(1, group.now);
  group.watch.joined(1, group.now);
  group.pass(60s);
  DOCTEST_CHECK(group.lost.size() == 1);
}

DOCTEST_TEST_CASE("silence is looked at when it has lasted long enough, not at the ping after that") {
  Group group({.liveness = {.world_size = 1, .ping_interval = 1s, .ping_deadline = 2500ms}});
  group.pass(1s);
  group.pass(2500ms, 0);
  DOCTEST_CHECK(group.lost.size() == 1);
}

DOCTEST_TEST_CASE("without a deadline a worker may be silent") {
  Group group({.liveness = {.world_size = 1, .ping_deadline = 0s}});
  group.pass(1h, 0);
  DOCTEST_CHECK(group.lost.empty());
}

DOCTEST_TEST_CASE("a driver that was stopped or starved does not blame its workers") {
  Group group(two_ranks());
  group.pass(3s);
  group.now += 1h;  // nobody was asked, nobody answered
  group.tick();
  DOCTEST_CHECK(group.lost.empty());
  for (int i = 0; i < 8; ++i) {  // each look at the clock comes late, and answers later still
    group.now += 30s;
    group.watch.tick(group.now);
  }
  DOCTEST_CHECK(group.watch.tick(group.now).lost.empty());
  for (int rank : {0, 1}) group.answer(rank);
  group.pass(1min);
  DOCTEST_CHECK(group.lost.empty());
}

DOCTEST_TEST_CASE("a stopped worker is given up after its grace, with the signal in the cause") {
  Group group(two_ranks());
  group.pass(1s);
  group.watch.stopped(1, "stopped by SIGSTOP", group.now);
  group.pass(1999ms);
  DOCTEST_CHECK(group.lost.empty());
  group.pass(1ms);
  DOCTEST_REQUIRE(group.lost.size() == 1);
  DOCTEST_CHECK(group.lost[0].rank == 1);
  DOCTEST_CHECK(group.lost[0].cause == "stopped by SIGSTOP for 2 s (stopped_grace)");
}

DOCTEST_TEST_CASE("a worker that is continued in time goes on, and its silence does not count") {
  Group group({.liveness = {.world_size = 1, .stopped_grace = 30s}});
  for (int i = 0; i < 3; ++i) {
    group.watch.stopped(0, "stopped by SIGSTOP", group.now);
    group.pass(29s, 0);
    group.watch.continued(0, group.now);
    group.pass(5s, 0);
    group.pass(5s);
  }
  DOCTEST_CHECK(group.lost.empty());
}

DOCTEST_TEST_CASE("with a grace of zero a stopped worker is given up at once, registered or not") {
  RankWatch watch({.liveness = {.world_size = 2, .stopped_grace = 0s}});
  watch.stopped(1, "stopped by SIGTSTP", Time{});
  const auto lost = watch.tick(Time{}).lost;
  DOCTEST_REQUIRE(lost.size() == 1);
  DOCTEST_CHECK(lost[0].cause == "stopped by SIGTSTP for 0 s (stopped_grace)");
}

DOCTEST_TEST_CASE("a function may take as long as it likes unless a deadline is set") {
  Group group(two_ranks());
  group.begin();
  group.pass(1h);
  DOCTEST_CHECK(group.lost.empty());
  DOCTEST_CHECK(group.warnings.empty());
}

DOCTEST_TEST_CASE("whom the others wait for is given up at the deadline, after a warning that shows where all stand") {
  Group group({.liveness = {.world_size = 3}, .progress_deadline = 60s});
  group.begin();
  for (int rank : {0, 1, 2}) group.of(rank) = {.progress = 20, .rounds = 7};
  group.of(0).waits_for = group.of(2).waits_for = WaitsFor::group;
  group.of(0).doing = group.of(2).doing = "all_reduce()";
  group.pass(29s);
  DOCTEST_CHECK(group.warnings.empty());
  group.pass(3s);
  DOCTEST_REQUIRE(group.warnings.size() == 1);
  DOCTEST_CHECK_MESSAGE(contains(group.warnings[0], "no progress for 30 s, half of progress_deadline"),
                        group.warnings[0]);
  DOCTEST_CHECK(contains(group.warnings[0], "rank 0 after round 7, in all_reduce() for 3"));
  DOCTEST_CHECK(contains(group.warnings[0], "rank 1 after round 7, in user code for 3"));
  group.pass(27s);
  DOCTEST_CHECK(group.lost.empty());
  group.pass(3s);
  DOCTEST_REQUIRE(group.lost.size() == 1);
  DOCTEST_CHECK(group.lost[0].rank == 1);
  DOCTEST_CHECK(group.lost[0].cause == "stuck: no progress for 60 s (progress_deadline), after round 7, in user code");
  DOCTEST_CHECK(group.warnings.size() == 1);
  group.watch.left(1, group.now);  // the others wait for its replacement
  group.pass(58s);
  DOCTEST_CHECK(group.lost.size() == 1);
}

DOCTEST_TEST_CASE("progress before the deadline ends a stall, and the next one is warned of again") {
  Group group({.liveness = {.world_size = 1}, .progress_deadline = 20s});
  group.begin();
  for (int i = 0; i < 5; ++i) {
    group.pass(15s);
    group.of(0).progress += 1;
    group.pass(2s);
  }
  DOCTEST_CHECK(group.lost.empty());
  DOCTEST_CHECK(group.warnings.size() == 5);
}

DOCTEST_TEST_CASE("who waits for a rank that makes progress must wait") {
  Group group({.liveness = {.world_size = 2}, .progress_deadline = 10s});
  group.begin();
  group.of(0) = {.progress = 1, .waits_for = WaitsFor::group, .doing = "barrier()"};
  for (int i = 0; i < 30; ++i) {
    group.of(1).progress += 1;
    group.pass(2s);
  }
  DOCTEST_CHECK(group.lost.empty());
  DOCTEST_CHECK(group.warnings.empty());
}

DOCTEST_TEST_CASE("when all wait for each other, those who came least far are given up") {
  Group group({.liveness = {.world_size = 3}, .progress_deadline = 10s});
  group.begin();
  for (int rank : {0, 1, 2}) group.of(rank) = {.progress = 9, .waits_for = WaitsFor::group, .doing = "barrier()"};
  group.of(2).progress = 8;
  group.pass(13s);
  DOCTEST_REQUIRE(group.lost.size() == 1);
  DOCTEST_CHECK(group.lost[0].rank == 2);
}

DOCTEST_TEST_CASE("when all wait for the driver nobody is given up, and the warning says so") {
  Group group({.liveness = {.world_size = 2}, .progress_deadline = 10s});
  group.begin();
  for (int rank : {0, 1}) group.of(rank) = {.progress = 9, .waits_for = WaitsFor::driver, .doing = "report()"};
  group.pass(1min);
  DOCTEST_CHECK(group.lost.empty());
  DOCTEST_REQUIRE(group.warnings.size() == 1);
  DOCTEST_CHECK(contains(group.warnings[0], "does a callback"));
}

DOCTEST_TEST_CASE("a rank whose function has ended is not stuck") {
  Group group({.liveness = {.world_size = 2}, .progress_deadline = 10s});
  group.begin();
  group.watch.ended(0);
  for (int i = 0; i < 10; ++i) {
    group.of(1).progress += 1;
    group.pass(3s);
  }
  DOCTEST_CHECK(group.lost.empty());
}

DOCTEST_TEST_CASE("ranks that wait in place for a new group are not stuck, however long it takes") {
  Group group({.liveness = {.world_size = 4}, .progress_deadline = 10s}, 3);
  group.begin();
  for (int rank : {0, 1}) {
    group.watch.held(rank);
    group.of(rank) = {.progress = 9, .waits_for = WaitsFor::group, .doing = "rejoin()"};
  }
  for (int i = 0; i < 10; ++i) {
    group.of(2).progress += 1;
    group.pass(3s);
  }
  DOCTEST_CHECK(group.lost.empty());
  DOCTEST_CHECK(group.warnings.empty());
  group.pass(6s);
  DOCTEST_REQUIRE(group.warnings.size() == 1);
  DOCTEST_CHECK(
      contains(group.warnings[0], "rank 0 waits for a new group; rank 1 waits for a new group; rank 2 after"));
  DOCTEST_CHECK_FALSE(contains(group.warnings[0], "rank 3"));
  group.watch.held(2);
  group.pass(1h);
  DOCTEST_CHECK(group.lost.empty());
  for (int rank : {0, 1, 2}) group.watch.began(rank, group.now);
  group.pass(13s);
  DOCTEST_REQUIRE(group.lost.size() == 1);
  DOCTEST_CHECK(group.lost[0].rank == 2);
}

DOCTEST_TEST_CASE("a short progress deadline is kept, whatever the interval of pings") {
  Group group({.liveness = {.world_size = 1}, .progress_deadline = 400ms});
  group.begin();
  group.pass(700ms);
  DOCTEST_CHECK(group.lost.size() == 1);
}

namespace {

/// Rounds of a second; compute times in ms by rank.
void train(Group& group, int rounds, const std::vector<int>& compute_ms) {
  for (int round = 0; round < rounds; ++round) {
    for (int rank = 0; rank < group.size; ++rank) {
      group.of(rank).rounds += 1;
      group.of(rank).progress += 1;
      group.of(rank).compute_us += 1000 * compute_ms.at(static_cast<std::size_t>(rank));
    }
    group.pass(1s);
  }
}

}  // namespace

DOCTEST_TEST_CASE("a rank that computes longer than the others for five rounds is told of, once") {
  Group group({.liveness = {.world_size = 4}});
  group.begin();
  train(group, 3, {100, 100, 100, 100});
  train(group, 4, {100, 100, 160, 110});
  DOCTEST_CHECK(group.slow.empty());
  train(group, 10, {100, 100, 160, 110});
  DOCTEST_REQUIRE(group.slow.size() == 1);
  DOCTEST_CHECK(group.slow[0].rank == 2);
  DOCTEST_CHECK(group.watch.slowdown(2) == doctest::Approx(1.6));
  DOCTEST_CHECK(group.watch.slowdown(3) == 0);
  DOCTEST_CHECK(contains(group.slow[0].text, "rank 2 is slow: it computes 160.0 ms a round, the others 100.0 ms"));
  DOCTEST_CHECK(group.lost.empty());
  train(group, 2, {100, 100, 100, 100});
  DOCTEST_CHECK(group.watch.slowdown(2) == 0);
  train(group, 10, {100, 100, 160, 110});
  DOCTEST_CHECK(group.slow.size() == 2);
}

DOCTEST_TEST_CASE("places without a worker do not hide a straggler") {
  Group group({.liveness = {.world_size = 8}}, 2);
  group.begin();
  train(group, 10, {100, 200});
  DOCTEST_REQUIRE(group.slow.size() == 1);
  DOCTEST_CHECK(group.slow[0].rank == 1);
}

DOCTEST_TEST_CASE("texts name the rank that a place has, not the place") {
  Group group({.liveness = {.world_size = 3}, .progress_deadline = 100s}, 3, [](int place) { return place + 4; });
  group.begin();
  train(group, 10, {100, 100, 200});
  DOCTEST_REQUIRE(group.slow.size() == 1);
  DOCTEST_CHECK(group.slow[0].rank == 2);
  DOCTEST_CHECK(contains(group.slow[0].text, "rank 6 is slow"));
  group.pass(50s);
  DOCTEST_REQUIRE(group.warnings.size() == 1);
  DOCTEST_CHECK(contains(group.warnings[0], "progress_deadline: rank 4 after round 10"));
}

DOCTEST_TEST_CASE("a rank that is slow now and then, or a little, is no straggler") {
  Group group({.liveness = {.world_size = 2}});
  group.begin();
  for (int i = 0; i < 10; ++i) {
    train(group, 4, {100, 300});
    train(group, 1, {100, 100});
  }
  train(group, 20, {100, 149});
  train(group, 20, {0, 1});  // noise, however large the ratio
  DOCTEST_CHECK(group.slow.empty());
}

DOCTEST_TEST_CASE("one look at many rounds is not enough to call a rank slow") {
  Group group({.liveness = {.world_size = 2}});
  group.begin();
  train(group, 3, {100, 100});
  // A rank that joined took over the others' count of rounds: for once it seems to be fast.
  group.of(0).rounds += 500;
  group.of(1).rounds += 10;
  group.of(1).compute_us += 10 * 100'000;
  group.pass(1s);
  train(group, 5, {100, 100});
  DOCTEST_CHECK(group.slow.empty());
}

DOCTEST_TEST_CASE("of two ranks the slower one is the straggler") {
  Group group({.liveness = {.world_size = 2}});
  group.begin();
  train(group, 10, {150, 100});
  DOCTEST_REQUIRE(group.slow.size() == 1);
  DOCTEST_CHECK(group.slow[0].rank == 0);
}

DOCTEST_TEST_CASE("a straggler is replaced if asked, but once a run only") {
  Group group({.liveness = {.world_size = 2}, .replace_stragglers = true});
  group.begin();
  train(group, 10, {100, 200});
  DOCTEST_REQUIRE(group.replaced.size() == 1);
  DOCTEST_CHECK(group.replaced[0].rank == 1);
  DOCTEST_CHECK(contains(group.replaced[0].cause, "replaced as a straggler: rank 1 is slow"));
  group.watch.left(1, group.now);
  group.watch.joined(1, group.now);
  for (int rank : {0, 1}) group.watch.began(rank, group.now);
  group.standing.assign(2, {});
  train(group, 10, {100, 200});
  DOCTEST_CHECK(group.replaced.size() == 1);
  DOCTEST_CHECK(group.lost.empty());
  DOCTEST_REQUIRE(group.warnings.size() == 1);
  DOCTEST_CHECK(contains(group.warnings[0], "slow again"));
}
