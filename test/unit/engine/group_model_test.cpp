// SPDX-License-Identifier: Apache-2.0
// Random schedules of a group of workers against a small model of the world around it: processes that start, run, form,
// wait, freeze, die and are killed, or threads, which cannot be killed. Whatever happens, the machine asks for nothing
// impossible, ends every attempt once, ends none because of a newcomer that the others do not need, takes no loss for a
// change of size, and gets on as soon as nothing more goes wrong.
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
  bool frozen = false;     // by SIGSTOP
  bool preempted = false;  // it was told so
  bool in_function = false;
  bool joining = false;  // it has not been in the group
  bool alone = false;    // on its way to the others
  bool saving = false;   // out of the function, and still writing
  bool deaf = false;     // computes, and looks at nothing
  bool held = false;
  bool live = false;
  bool halted = false;
  bool aborted = false;
  bool saw_notice = false;
  std::uint64_t forming = 0;  // the epoch
};

/// What happened to a newcomer that the others do not need.
constexpr const char* harmless = "harmless";

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
        until([&] { return nobody_is_busy(); }, "what an attempt left behind ends");
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
  bool is_member(int rank) const {
    const auto members = machine_.members();
    return std::find(members.begin(), members.end(), rank) != members.end();
  }
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

  bool nobody_is_busy() const {
    return std::none_of(processes_.begin(), processes_.end(),
                        [](const Process& p) { return p.alive && (p.in_function || p.forming != 0 || !p.ready); });
  }

  bool nobody_can_work() const {
    return std::none_of(processes_.begin(), processes_.end(), [](const Process& p) { return p.alive && !p.held; });
  }

  /// The user's program.
  void ask() {
    switch (pick(8)) {
      case 0:
        if (!attempt_) return;
        stopped_ = true;
        return perform(machine_.stop_attempt(chance(3), now_));
      case 1:
        if (!started_) return;
        resized_ = true;
        return perform(machine_.resize(1 + pick(places()), now_));
      case 2:
        if (started_) preempt(pick(places()));
        return;
      case 3:
        machine_.set_room(pick(places() + 2));
        return perform(machine_.use_room(now_));
      case 4:
        return check_rank(pick(places()));
      default:
        if (started_ && !attempt_) begin();
    }
  }

  void preempt(int rank) {
    at(rank).preempted |= at(rank).alive;
    perform(machine_.preempt(rank, now_ + std::chrono::milliseconds(pick(20'000)), now_));
  }

  /// Somebody watches it, and finds it stopped or silent.
  void check_rank(int rank) {
    if (!at(rank).alive) return;
    if (limits_.can_kill && chance(2)) {
      at(rank).frozen = true;
      return perform(machine_.frozen(rank, true));
    }
    if (started_) as_event_of(rank, [&] { perform(machine_.give_up(rank, "silent", now_)); });
  }

  /// May the others go on in place?
  void answer() {
    const auto failure = *std::exchange(asked_, std::nullopt);
    if (chance(4)) return perform(machine_.fail_attempt(failure, now_));
    loss_ = false;
    perform(machine_.go_on(now_));
  }

  void begin() {
    attempt_ = true;
    perform(machine_.begin_attempt(now_));
  }

  void pass_time() {
    const auto next = machine_.deadline();
    now_ += std::chrono::milliseconds(pick(500));
    // Who works in calm times is seldom so slow.
    if (next && chance(calm_ ? 10 : 2)) now_ = std::max(now_, *next);
    perform(machine_.tick(now_));
    // Nothing that is late is put off: the group would spin.
    DOCTEST_REQUIRE((!machine_.deadline() || *machine_.deadline() > now_));
  }

  /// Something happens in that process; false if it has nothing to do.
  bool work(int rank) {
    auto& p = at(rank);
    if (p.killed || (!calm_ && limits_.can_kill && chance(15))) return die(rank), true;
    if (p.frozen) {
      if (!calm_ && !chance(5)) return false;
      p.frozen = false;
      return perform(machine_.frozen(rank, false)), true;
    }
    if (!p.ready) {
      p.ready = true;
      if (chance(3))
        machine_.promoted(rank);
      else
        perform(machine_.registered(rank));
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
    loss_ |= attempt_ && !stopped_ && at(rank).in_function && !at(rank).joining && !at(rank).killed && is_member(rank);
    as_event_of(rank, [&] {
      at(rank) = Process{};
      if (told_before) perform(machine_.disconnected(rank, now_));
      perform(machine_.lost(rank, harmless_ ? harmless : "died", {}, now_));
    });
  }

  /// What a newcomer does ends nothing, if the others are enough without it.
  template <class Event>
  void as_event_of(int rank, Event&& event) {
    const int others = static_cast<int>(machine_.members().size()) - (is_member(rank) ? 1 : 0);
    const bool is_missed = at(rank).preempted && is_member(rank);  // the others wait for it
    harmless_ = at(rank).joining && !is_missed && !halting_ && others >= limits_.min_workers;
    event();
    harmless_ = false;
  }

  void end_forming(int rank) {
    auto& p = at(rank);
    const auto epoch = std::exchange(p.forming, 0);
    perform(machine_.came_back(rank, false));
    if (!calm_ && chance(20))
      perform(machine_.form_failed(rank, epoch, fatal(rank), now_));
    else if (std::exchange(p.aborted, false) || (!calm_ && chance(10)))
      perform(machine_.form_failed(rank, epoch, {FailureKind::fatal, troupe::ErrorCode::group_lost, rank, "x"}, now_));
    else
      perform(machine_.formed(rank, epoch, now_));
  }

  bool run(int rank) {
    auto& p = at(rank);
    if (p.saving || p.deaf) {
      if (!calm_ && !chance(5)) return false;
      p.deaf = false;
      if (p.saving) return end_function(rank, p.halted ? RankEnd::stopped : RankEnd::returned), true;
    }
    if (!calm_ && !p.held && chance(20)) return p.deaf = true;
    if (p.halted || p.leaving) return end_function(rank, RankEnd::stopped), true;
    if (p.held) return false;
    if (p.alone) return come_to_the_others(rank);
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
    if (!calm_ && chance(12)) {
      p.saving = true;
      return machine_.saving(rank), true;
    }
    if (chance(6)) return end_function(rank, RankEnd::returned), true;
    return false;
  }

  bool come_to_the_others(int rank) {
    auto& p = at(rank);
    if (!calm_ && chance(10)) return end_function(rank, static_cast<RankEnd>(pick(3))), true;
    if (!chance(4)) return false;
    p.alone = p.aborted = false;
    p.live = p.held = true;
    perform(machine_.live(rank, true, now_));
    return perform(machine_.held(rank, "", false, now_)), true;
  }

  void end_function(int rank, RankEnd end) {
    auto& p = at(rank);
    const bool saw_notice = p.saw_notice && chance(2);
    const auto finish = [&] {
      p = Process{.alive = true, .ready = true, .leaving = p.leaving, .killed = p.killed, .preempted = p.preempted};
      std::optional<Failure> failure;
      if (end == RankEnd::threw)
        failure = Failure{FailureKind::user_error, troupe::ErrorCode::user_code, rank, harmless_ ? harmless : "x"};
      perform(machine_.came_back(rank, true));
      perform(machine_.done(rank, end, failure, now_, saw_notice));
    };
    // A function that cannot be joined in place may be run again.
    end == RankEnd::stopped ? finish() : as_event_of(rank, finish);
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
  void act(const KillWorker& action) {
    DOCTEST_REQUIRE(limits_.can_kill);
    at(action.rank).killed |= at(action.rank).alive;
  }
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
    p.live = false;
    p.joining = p.alone = action.joining;
    if (!action.joining && first_run_) {
      live_run_ = chance(2);
      first_run_ = false;
    }
  }
  void act(const SendAbort& action) { at(action.rank).aborted |= at(action.rank).in_function; }
  void act(const SendResume& action) {
    auto& p = at(action.rank);
    if (!p.alive) return;
    DOCTEST_REQUIRE(p.held);
    p.held = p.aborted = p.joining = loss_ = false;
  }
  void act(const SendNotice& action) { at(action.rank).saw_notice |= at(action.rank).in_function; }
  void act(const SendHalt& action) {
    auto& p = at(action.rank);
    p.halted |= p.in_function;
    p.aborted |= p.forming != 0;
    if (!is_member(action.rank)) return;
    // A resize may run the function again with those that came.
    DOCTEST_REQUIRE_FALSE((harmless_ && !resized_));
    halting_ = true;
  }
  void act(const SendLeave& action) { at(action.rank).leaving |= at(action.rank).alive; }
  void act(const AskToGoOn& action) {
    DOCTEST_REQUIRE(attempt_);
    DOCTEST_REQUIRE_FALSE(asked_);
    DOCTEST_REQUIRE(action.failure.text != harmless);
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
    DOCTEST_REQUIRE((!action.failure || action.failure->text != harmless));
    // Else it would cost nothing, however often it happens.
    DOCTEST_REQUIRE_FALSE((loss_ && action.failure && action.failure->kind == FailureKind::resized));
    attempt_ = halting_ = resized_ = stopped_ = loss_ = false;
    asked_.reset();
    first_run_ = true;
    succeeded_ = calm_ && !action.failure;
  }
  void act(const GroupGone& action) {
    DOCTEST_REQUIRE_FALSE(over_);
    DOCTEST_REQUIRE((action.stuck_ranks.empty() || !limits_.can_kill));
    for (int rank : action.stuck_ranks) at(rank) = Process{};
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
  bool halting_ = false;  // members have to leave the function
  bool resized_ = false;  // somebody has asked for a size in this attempt
  bool stopped_ = false;  // somebody has asked for the end of this attempt
  bool loss_ = false;     // of a member that ran the function, which nobody has decided upon
  std::optional<Failure> asked_;
  bool harmless_ = false;  // what is told just now is the doing of a newcomer that the others do not need
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
                 .can_kill = seed % 7 != 0,
                 .forms_group = seed % 2 == 0,
                 .min_workers = seed % 5 == 0 ? 1 : workers,
                 .max_workers = workers + static_cast<int>(seed % 2),
                 .spares = static_cast<int>(seed % 3)})
        .play();
  }
}
