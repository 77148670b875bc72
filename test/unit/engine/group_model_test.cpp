// SPDX-License-Identifier: Apache-2.0
// Random schedules of a group of workers against a small model of the world around it: processes that start, run, form,
// wait, die and are killed. Whatever happens, the machine asks for nothing impossible, ends every attempt once, and
// gets on as soon as nothing more goes wrong.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>

#include "runtime/engine/group_machine.hpp"

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

/// A worker process as it really is; the machine hears of it later.
struct Process {
  bool alive = false;
  bool ready = false;
  bool leaving = false;
  bool killed = false;
  bool in_function = false;
  bool held = false;
  bool live = false;
  bool halted = false;
  bool aborted = false;
  bool saw_notice = false;
  std::uint64_t forming = 0;  // the epoch
};

class World {
public:
  World(unsigned seed, GroupLimits limits)
      : random_(seed), machine_(limits), processes_(static_cast<std::size_t>(limits.max_workers)), limits_(limits) {}

  void play() {
    perform(machine_.start(now_));
    for (int i = 0; i < 400 && !over_; ++i) step();
    calm_ = true;
    if (!failed_start_) {
      until([&] { return started_ && !attempt_; }, "the attempt ends");
      // With nothing in the way a run comes to its end; what was preempted before may cost one more attempt each.
      for (int i = 0; !succeeded_; ++i) {
        DOCTEST_REQUIRE(i < 10);
        begin();
        until([&] { return !attempt_; }, "a calm attempt ends");
      }
    }
    perform(machine_.leave(5s, now_));
    until([&] { return over_; }, "the group is gone");
  }

private:
  int pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }
  bool chance(int one_in) { return pick(one_in) == 0; }
  Process& at(int rank) { return processes_.at(static_cast<std::size_t>(rank)); }
  int places() const { return static_cast<int>(processes_.size()); }

  void until(const std::function<bool()>& done, const char* what) {
    DOCTEST_CAPTURE(what);
    for (int i = 0; !done(); ++i) {
      DOCTEST_REQUIRE(i < 2000);
      step();
    }
  }

  // ---- what happens

  void step() {
    if (!calm_ && chance(12)) return ask();
    if (started_ && chance(20)) return perform(machine_.calls_open(!calm_ && chance(2), now_));
    if (asked_ && chance(3)) return answer();
    const int rank = pick(places());
    if (at(rank).alive && work(rank)) return;
    if (chance(4) || nobody_can_work()) pass_time();
  }

  bool nobody_can_work() const {
    return std::none_of(processes_.begin(), processes_.end(), [](const Process& p) { return p.alive && !p.held; });
  }

  /// The user's program.
  void ask() {
    switch (pick(7)) {
      case 0:
        if (!attempt_) return;
        return perform(machine_.stop_attempt(chance(3), now_));
      case 1:
        if (started_) perform(machine_.resize(1 + pick(places()), now_));
        return;
      case 2:
        if (started_) perform(machine_.preempt(pick(places()), now_ + std::chrono::milliseconds(pick(20'000)), now_));
        return;
      case 3:
        machine_.set_room(pick(places() + 2));
        return perform(machine_.use_room(now_));
      default:
        if (started_ && !attempt_) begin();
    }
  }

  /// May the others go on in place?
  void answer() {
    const auto failure = *std::exchange(asked_, std::nullopt);
    perform(chance(4) ? machine_.fail_attempt(failure, now_) : machine_.go_on(now_));
  }

  void begin() {
    attempt_ = true;
    perform(machine_.begin_attempt(now_));
  }

  void pass_time() {
    const auto next = machine_.deadline();
    now_ += std::chrono::milliseconds(pick(500));
    if (next && chance(2)) now_ = std::max(now_, *next);
    perform(machine_.tick(now_));
    // Nothing that is late is put off: the group would spin.
    DOCTEST_REQUIRE((!machine_.deadline() || *machine_.deadline() > now_));
  }

  /// Something happens in that process; false if it has nothing to do.
  bool work(int rank) {
    auto& p = at(rank);
    if (p.killed || (!calm_ && chance(15))) return die(rank), true;
    if (!p.ready) {
      p.ready = true;
      if (chance(3))
        machine_.promoted(rank);
      else
        machine_.registered(rank);
      if (!calm_ && chance(20)) return perform(machine_.setup_failed(fatal(rank), now_)), true;
      return perform(machine_.ready(rank, now_)), true;
    }
    if (p.forming != 0) return end_forming(rank), true;
    if (p.in_function) return run(rank);
    if (p.leaving) return die(rank), true;
    return false;
  }

  void die(int rank) {
    const bool told_before = chance(2);
    at(rank) = Process{};
    if (told_before) perform(machine_.disconnected(rank, now_));
    perform(machine_.lost(rank, "died", {}, now_));
  }

  void end_forming(int rank) {
    auto& p = at(rank);
    const auto epoch = std::exchange(p.forming, 0);
    if (!calm_ && chance(20))
      perform(machine_.form_failed(rank, epoch, fatal(rank), now_));
    else if (std::exchange(p.aborted, false) || (!calm_ && chance(10)))
      perform(machine_.form_failed(rank, epoch, {FailureKind::fatal, troupe::ErrorCode::group_lost, rank, "x"}, now_));
    else
      perform(machine_.formed(rank, epoch, now_));
  }

  bool run(int rank) {
    auto& p = at(rank);
    if (p.halted || p.leaving) return end_function(rank, RankEnd::stopped), true;
    if (p.held) return false;
    if (p.aborted && !p.live) return end_function(rank, RankEnd::stopped), true;
    if (p.aborted) {
      p.aborted = false;
      p.held = true;
      return perform(machine_.held(rank, "lost", false, now_)), true;
    }
    if (!calm_ && p.live && chance(20)) {  // its step threw, and it asks to make it again
      p.held = true;
      return perform(machine_.held(rank, "threw", true, now_)), true;
    }
    if (!calm_ && chance(20)) return end_function(rank, RankEnd::threw), true;
    if (!p.live && live_run_) {
      p.live = true;
      perform(machine_.live(rank, true, now_));
      return true;
    }
    if (chance(6)) return end_function(rank, RankEnd::returned), true;
    return false;
  }

  void end_function(int rank, RankEnd end) {
    auto& p = at(rank);
    const bool saw_notice = p.saw_notice && chance(2);
    p = Process{.alive = true, .ready = true, .leaving = p.leaving, .killed = p.killed};
    std::optional<Failure> failure;
    if (end == RankEnd::threw) failure = Failure{FailureKind::user_error, troupe::ErrorCode::user_code, rank, "x"};
    perform(machine_.done(rank, end, failure, now_, saw_notice));
  }

  static Failure fatal(int rank) { return {FailureKind::fatal, troupe::ErrorCode::user_code, rank, "x"}; }

  // ---- what the machine asks for

  void perform(const GroupActions& actions) {
    for (const auto& action : actions) std::visit([this](const auto& one) { act(one); }, action);
  }

  void act(const LaunchWorker& action) {
    DOCTEST_REQUIRE_FALSE(at(action.rank).alive);
    DOCTEST_REQUIRE_FALSE(over_);
    if (!calm_ && chance(started_ ? 8 : 60)) return perform(machine_.launch_failed(fatal(action.rank), now_));
    at(action.rank).alive = true;
  }
  void act(const KillWorker& action) { at(action.rank).killed |= at(action.rank).alive; }
  void act(const SendForm& action) {
    auto& p = at(action.rank);
    DOCTEST_REQUIRE(limits_.forms_group);
    if (!p.alive) return;
    DOCTEST_REQUIRE(p.ready);
    DOCTEST_REQUIRE((!p.in_function || p.held));
    p.forming = action.epoch;
    p.aborted = false;
  }
  void act(const SendRun& action) {
    DOCTEST_REQUIRE(attempt_);
    auto& p = at(action.rank);
    DOCTEST_REQUIRE(p.alive);
    DOCTEST_REQUIRE(p.ready);
    DOCTEST_REQUIRE_FALSE(p.in_function);
    p.in_function = true;
    p.halted = p.held = p.aborted = p.saw_notice = false;
    p.live = action.joining;
    if (action.joining) {  // it comes to the point where the others wait
      perform(machine_.live(action.rank, true, now_));
      p.aborted = true;
    } else if (first_run_) {
      live_run_ = chance(2);
      first_run_ = false;
    }
  }
  void act(const SendAbort& action) { at(action.rank).aborted |= at(action.rank).in_function; }
  void act(const SendResume& action) {
    auto& p = at(action.rank);
    if (!p.alive) return;
    DOCTEST_REQUIRE(p.held);
    p.held = p.aborted = false;
  }
  void act(const SendNotice& action) { at(action.rank).saw_notice |= at(action.rank).in_function; }
  void act(const SendHalt& action) {
    auto& p = at(action.rank);
    p.halted |= p.in_function;
    p.aborted |= p.forming != 0;
  }
  void act(const SendLeave& action) { at(action.rank).leaving |= at(action.rank).alive; }
  void act(const AskToGoOn& action) {
    DOCTEST_REQUIRE(attempt_);
    DOCTEST_REQUIRE_FALSE(asked_);
    asked_ = action.failure;
  }
  void act(const Tell&) {}
  void act(const Decided& action) { DOCTEST_REQUIRE(action.decision.decision.retry); }
  void act(const GroupStarted&) {
    DOCTEST_REQUIRE_FALSE(started_);
    started_ = true;
  }
  void act(const StartFailed&) {
    DOCTEST_REQUIRE_FALSE(started_);
    failed_start_ = over_start();
  }
  bool over_start() {
    calm_ = true;
    return true;
  }
  void act(const AttemptEnded& action) {
    DOCTEST_REQUIRE(attempt_);
    attempt_ = false;
    asked_.reset();
    first_run_ = true;
    succeeded_ = calm_ && !action.failure;
  }
  void act(const GroupGone& action) {
    DOCTEST_REQUIRE_FALSE(over_);
    DOCTEST_REQUIRE(action.stuck_ranks.empty());
    for (const auto& p : processes_) DOCTEST_REQUIRE_FALSE(p.alive);
    over_ = true;
  }

  std::mt19937 random_;
  GroupMachine machine_;
  std::vector<Process> processes_;
  GroupLimits limits_;
  Time now_ = Time{} + 1h;
  bool calm_ = false;
  bool started_ = false;
  bool failed_start_ = false;
  bool attempt_ = false;
  std::optional<Failure> asked_;
  bool succeeded_ = false;
  bool first_run_ = true;
  bool live_run_ = false;
  bool over_ = false;
};

}  // namespace

DOCTEST_TEST_CASE("random schedules of a group keep to the model of the world") {
  const char* given = std::getenv("TROUPE_SEED");
  const unsigned first = given ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
  for (unsigned i = 0; i < 2000; ++i) {
    const auto seed = first + i;
    DOCTEST_CAPTURE(seed);  // play it again with TROUPE_SEED
    const int workers = 1 + static_cast<int>(seed % 3);
    World(seed, {.world_size = workers,
                 .forms_group = seed % 2 == 0,
                 .min_workers = seed % 5 == 0 ? 1 : workers,
                 .max_workers = workers + static_cast<int>(seed % 2)})
        .play();
  }
}
