// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/group_machine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace troupe::engine {

GroupMachine::GroupMachine(GroupLimits limits)
    : limits_(limits),
      wanted_(std::max(limits.world_size, limits.max_workers)),
      room_(limits.world_size),
      slots_(static_cast<std::size_t>(std::max(limits.world_size, limits.max_workers))),
      idle_restarts_(slots_.size(), RestartWindow(5, std::chrono::seconds(60))),
      growth_delay_(limits.first_growth_delay) {
  if (limits_.min_workers == 0) limits_.min_workers = limits_.world_size;
  for (int rank = 0; rank < limits_.world_size; ++rank) slot(rank).member = true;
}

std::vector<int> GroupMachine::members() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < places(); ++rank)
    if (slot(rank).member) ranks.push_back(rank);
  return ranks;
}

int GroupMachine::member_count() const { return static_cast<int>(members().size()); }

/// For people, who know no places.
int GroupMachine::rank_of(int place) const {
  if (!slot(place).member) return place;
  const auto ranks = members();
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), place) - ranks.begin());
}

int GroupMachine::occupied() const {
  return static_cast<int>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.member || s.state != State::absent; }));
}

bool GroupMachine::all_members(State state) const {
  return std::all_of(slots_.begin(), slots_.end(), [state](const Slot& s) { return !s.member || s.state == state; });
}

/// Between SendRun and done().
bool GroupMachine::in_function(int rank) const {
  const auto state = slot(rank).state;
  return state == State::running || state == State::held ||
         (state == State::forming && attempt_ == Attempt::regrouping);
}

/// The function goes on, but on no member.
bool GroupMachine::only_others_run() const {
  bool somebody_runs = false;
  for (int rank = 0; rank < places(); ++rank) {
    if (!in_function(rank)) continue;
    if (slot(rank).member) return false;
    somebody_runs = true;
  }
  return somebody_runs;
}

// ---- start ----------------------------------------------------------------------------------------------------------

GroupActions GroupMachine::start(Time now) {
  GroupActions actions;
  start_pending_ = true;
  launch_absent(now, actions);
  return actions;
}

void GroupMachine::launch(int rank, Time now, GroupActions& actions) {
  auto& s = slot(rank);
  s = Slot{
      .state = State::starting, .member = s.member, .start_failures = s.start_failures, .dead_spares = s.dead_spares};
  s.start_deadline = now + limits_.start_deadline;
  if (s.member) epoch_ += 1;  // without it the group that trains now stays as it is
  forming_failed_ = false;
  actions.push_back(LaunchWorker{rank});
}

void GroupMachine::launch_absent(Time now, GroupActions& actions) {
  for (int rank = 0; rank < places(); ++rank)
    if (slot(rank).member && slot(rank).state == State::absent) launch(rank, now, actions);
}

GroupActions GroupMachine::registered(int rank) {
  slot(rank).registered = true;
  if (slot(rank).dropped) return {SendLeave{rank}};  // a thread, which nobody could tell before
  return {};
}

void GroupMachine::promoted(int rank) { slot(rank).registered = slot(rank).promoted = true; }

GroupActions GroupMachine::ready(int rank, Time now) {
  GroupActions actions;
  const bool was_stuck = slot(rank).state == State::stuck;  // a thread that was late
  if ((slot(rank).state != State::starting && !was_stuck) || leaving_) return actions;
  slot(rank).state = State::ready;
  slot(rank).dead_spares = 0;
  // Who joins others that wait is up when it has come to them.
  if (!limits_.forms_group && attempt_ != Attempt::regrouping) slot(rank).start_failures = 0;
  if (!slot(rank).member)
    take_in_newcomers(now, actions);
  else if (attempt_ == Attempt::regrouping)
    send_in(rank, now, actions);
  proceed(now, actions);
  return actions;
}

/// What can be done once all workers are there: form, tell that the group is up, run.
void GroupMachine::proceed(Time now, GroupActions& actions) {
  // Between runs one was replaced, and calls may want the group.
  const bool idle = is_up_ && attempt_ == Attempt::none && !calls_open_ && !forming_failed_;
  if (!all_members(State::ready) || (!start_pending_ && !idle && attempt_ != Attempt::pending)) return;
  if (limits_.forms_group && formed_epoch_ != epoch_) return form_all(now, actions);
  shortage_.reset();
  is_up_ = true;
  if (std::exchange(start_pending_, false)) actions.push_back(GroupStarted{});
  if (attempt_ == Attempt::pending) run_all(actions);
}

GroupActions GroupMachine::calls_open(bool open, Time now) {
  GroupActions actions;
  calls_open_ = open;
  if (!open && !leaving_) proceed(now, actions);
  return actions;
}

void GroupMachine::form_all(Time now, GroupActions& actions) {
  for (int rank : members()) {
    slot(rank).state = State::forming;
    slot(rank).start_deadline = now + limits_.start_deadline;
    actions.push_back(SendForm{rank, epoch_});
  }
}

GroupActions GroupMachine::formed(int rank, std::uint64_t epoch, Time now) {
  GroupActions actions;
  if (slot(rank).state != State::forming || leaving_) return actions;
  slot(rank).start_failures = 0;
  if (attempt_ == Attempt::regrouping) {
    slot(rank).state = State::held;
    slot(rank).formed = epoch;
    proceed_regrouping(now, actions);
    return actions;
  }
  slot(rank).state = State::ready;
  if (epoch == epoch_ && all_members(State::ready)) {
    formed_epoch_ = epoch;
    failed_formings_ = 0;
  }
  proceed(now, actions);
  return actions;
}

GroupActions GroupMachine::form_failed(int rank, std::uint64_t epoch, Failure failure, Time now) {
  GroupActions actions;
  if (slot(rank).state != State::forming || leaving_) return actions;
  const bool regrouping = attempt_ == Attempt::regrouping;
  slot(rank).state = regrouping ? State::held : State::ready;
  if (epoch == epoch_ && failure.code != ErrorCode::group_lost) {
    epoch_ += 1;
    abort_forming(actions);
    give_up_start(std::move(failure), now, actions);
    return actions;
  }
  // A rank that noticed the loss of another before we did: nobody can form this epoch any more.
  if (epoch == epoch_) {
    epoch_ += 1;
    failed_formings_ += 1;
  }
  abort_forming(actions);
  if (failed_formings_ == limits_.start_attempts) {
    failure.text += fmt::format(" ({} times in a row, and no worker was lost: can all of them reach each other?)",
                                failed_formings_);
    give_up_start(std::move(failure), now, actions);
    return actions;
  }
  if (regrouping)
    proceed_regrouping(now, actions);
  else
    proceed(now, actions);
  return actions;
}

void GroupMachine::abort_forming(GroupActions& actions) {
  for (int rank = 0; rank < places(); ++rank)
    if (slot(rank).state == State::forming) actions.push_back(SendAbort{rank});
}

/// Of an idle group that has lost somebody: who waits for it in a call waits no longer.
void GroupMachine::abort_calls(GroupActions& actions) const {
  if (attempt_ != Attempt::none || !limits_.forms_group || formed_epoch_ != epoch_) return;
  for (int rank : members())
    if (slot(rank).state == State::ready) actions.push_back(SendAbort{rank});
}

GroupActions GroupMachine::setup_failed(Failure failure, Time now) {
  GroupActions actions;
  if (leaving_ || slot(failure.rank).dropped) return actions;
  if (!slot(failure.rank).member) {
    do_without(failure.rank, failure.text, now, actions);
    return actions;
  }
  // (A start that fails ends all workers anyway.)
  if (!start_pending_) {
    if (limits_.can_kill) {
      kill(failure.rank, actions);
    } else {
      slot(failure.rank).killed = true;
      actions.push_back(SendLeave{failure.rank});
    }
  }
  // Trying again cannot help, but others may be enough.
  if (start_pending_ || !do_without(failure.rank, failure.text, now, actions))
    give_up_start(std::move(failure), now, actions);
  return actions;
}

GroupActions GroupMachine::launch_failed(Failure failure, Time now) {
  GroupActions actions;
  slot(failure.rank) = Slot{.member = slot(failure.rank).member};
  if (leaving_)
    end_leave_if_gone(actions);
  else
    could_not_start(std::move(failure), now, actions);
  return actions;
}

/// The place stays empty. What needs it goes on without it if that is allowed, and waits for another try if not.
void GroupMachine::could_not_start(Failure failure, Time now, GroupActions& actions) {
  if (do_without(failure.rank, failure.text, now, actions)) return;
  if (attempt_ == Attempt::pending || attempt_ == Attempt::regrouping)
    try_again_later(std::move(failure), now, actions);
  else
    give_up_start(std::move(failure), now, actions);
}

void GroupMachine::try_again_later(Failure failure, Time now, GroupActions& actions) {
  if (!shortage_) shortage_ = Shortage{now};
  auto& shortage = *shortage_;
  if (shortage.again_at) return;  // together with the others
  if (shortage.tries == limits_.more_tries) {
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - shortage.since);
    failure.text += fmt::format("; {} more tries within {} s did not help", shortage.tries, waited.count());
    return give_up_start(std::move(failure), now, actions);
  }
  const auto delay = std::min(limits_.first_growth_delay * (1 << shortage.tries), limits_.longest_growth_delay);
  shortage.tries += 1;
  shortage.again_at = now + delay;
  decide(failure.text, fmt::format("the others wait, and try {} of {} follows", shortage.tries, limits_.more_tries),
         now, actions, delay);
}

void GroupMachine::give_up_start(Failure failure, Time now, GroupActions& actions) {
  failure.kind = FailureKind::fatal;
  shortage_.reset();
  forming_failed_ = true;
  failed_formings_ = 0;
  if (attempt_ == Attempt::regrouping) {
    failure_ = std::move(failure);
    fall_back(now, actions);
  } else if (start_pending_) {
    start_pending_ = false;
    actions.push_back(StartFailed{std::move(failure)});
  } else if (attempt_ == Attempt::pending) {
    attempt_ = Attempt::none;
    actions.push_back(AttemptEnded{std::move(failure)});
  } else if (attempt_ != Attempt::stopping) {
    actions.push_back(Tell{failure.text + "; it is tried again when the next run begins"});
  }
}

// ---- attempts -------------------------------------------------------------------------------------------------------

GroupActions GroupMachine::begin_attempt(Time now) {
  GroupActions actions;
  if (leaving_) return actions;
  for (int rank = 0; rank < places(); ++rank)
    if (slot(rank).member && slot(rank).state == State::stuck) {
      actions.push_back(AttemptEnded{
          Failure{FailureKind::fatal,
                  ErrorCode::invalid_state,
                  rank,
                  fmt::format("thread rank {} still runs the function of an earlier run, so no new one can begin",
                              rank_of(rank)),
                  {}}});
      return actions;
    }
  failure_.reset();
  suspicion_.reset();
  stop_asked_ = false;
  failed_first_.reset();
  stop_deadline_.reset();
  shortage_.reset();
  attempt_ = Attempt::pending;
  forming_failed_ = false;
  for (int rank : members())  // nobody waited for an idle group
    if (slot(rank).state == State::forming) slot(rank).start_deadline = now + limits_.start_deadline;
  drop_surplus(now, actions);
  launch_absent(now, actions);
  if (!grow_at_ || now >= *grow_at_) grow(now, actions);
  for (int rank = 0; rank < places() && surplus() < 0; ++rank)
    if (auto& s = slot(rank); !s.member && !s.dropped && s.state != State::absent && s.state != State::stuck) {
      s.member = true;
      epoch_ += 1;
    }
  resizing_ = false;
  proceed(now, actions);
  return actions;
}

void GroupMachine::run_all(GroupActions& actions) {
  attempt_ = Attempt::running;
  permission_ = Permission::not_needed;
  for (int rank : members()) {
    slot(rank).state = State::running;
    slot(rank).live = slot(rank).joining = false;
    if (!slot(rank).preempted) slot(rank).taken_at.reset();
    actions.push_back(SendRun{rank});
  }
  for (int rank : members())
    if (slot(rank).preempted) announce_preempted(rank, actions);
}

GroupActions GroupMachine::stop_attempt(bool at_once, Time now) {
  GroupActions actions;
  if (attempt_ == Attempt::pending) {
    attempt_ = Attempt::none;
    shortage_.reset();
    epoch_ += 1;
    abort_forming(actions);
    actions.push_back(AttemptEnded{std::nullopt});
    return actions;
  }
  if (attempt_ == Attempt::none) return actions;
  if (attempt_ == Attempt::stopping && !stop_asked_) failed_first_ = std::move(failure_);
  stop_asked_ = true;
  halt_running(now, actions);
  failure_.reset();
  suspicion_.reset();
  if (at_once) kill_or_abandon(actions, /*even_writing=*/true);
  end_attempt_if_quiet(actions);
  return actions;
}

GroupActions GroupMachine::fail_attempt(Failure failure, Time now) {
  GroupActions actions;
  if (attempt_ != Attempt::running && attempt_ != Attempt::regrouping) return actions;
  failure_ = std::move(failure);
  halt_running(now, actions);
  end_attempt_if_quiet(actions);
  return actions;
}

GroupActions GroupMachine::done(int rank, RankEnd end, const std::optional<Failure>& failure, Time now,
                                bool saw_notice) {
  GroupActions actions;
  if (!in_function(rank)) return actions;
  auto& s = slot(rank);
  s.state = State::ready;
  s.saving = false;
  const bool was_joining = std::exchange(s.joining, false);
  const bool is_active = attempt_ == Attempt::running || attempt_ == Attempt::regrouping;
  if (s.dropped) {
    actions.push_back(SendLeave{rank});
  } else if (is_active && was_joining && did_not_join(rank, end, failure, now, actions)) {
    // the others are enough
  } else if (is_active) {
    if (end == RankEnd::threw) failure_ = failure;
    if (end == RankEnd::returned && saw_notice) answer_notice(rank, actions);
    std::string why;
    if (end == RankEnd::stopped) {
      why = failure ? failure->text : "it left its function";
      suspicion_ = group_failed(rank, why);
      why = fmt::format("rank {}: {}", rank_of(rank), why);
    }
    // A rank may notice the death of another before the Node tells us; the cause follows with lost(). And one that has
    // left its function cannot go on in place with the others, unless all come to the end of it.
    if (end != RankEnd::returned || (attempt_ == Attempt::regrouping && (was_joining || !may_all_return())))
      fall_back(now, actions, why);
    if (attempt_ == Attempt::regrouping) end_regrouping_if_over(now, actions);
  } else if (attempt_ == Attempt::stopping && s.member && end == RankEnd::threw && suspicion_ &&
             suspicion_->code == ErrorCode::group_lost) {
    suspicion_ = std::move(failure);  // why the others could not go on, unless somebody was lost
  }
  // Who was to join comes too late, and who was told to leave is awaited no longer than after any other stop.
  if (attempt_ == Attempt::running && only_others_run()) halt_running(now, actions);
  end_attempt_if_quiet(actions);
  return actions;
}

/// A newcomer has left its function. False: the others cannot do without it.
bool GroupMachine::did_not_join(int rank, RankEnd end, const std::optional<Failure>& failure, Time now,
                                GroupActions& actions) {
  if (end == RankEnd::stopped) {  // the function cannot be joined in place, but can run again
    if (slot(rank).member) return false;
    if (!is_ending() && std::exchange(resizing_, false)) {  // it is disturbed only if somebody asked
      note_failure(run_again());
      halt_running(now, actions);
      return true;
    }
  }
  const char* how = end == RankEnd::returned ? "returned" : end == RankEnd::threw ? "threw" : "left its function";
  return do_without(
      rank, fmt::format("a newcomer {} before it could join the others{}", how, failure ? ": " + failure->text : ""),
      now, actions);
}

/// All leave the function.
void GroupMachine::halt_running(Time now, GroupActions& actions) {
  if (attempt_ != Attempt::running && attempt_ != Attempt::regrouping) return;
  for (int rank = 0; rank < places(); ++rank)
    if (in_function(rank)) {
      slot(rank).state = State::running;
      actions.push_back(SendHalt{rank});
    }
  attempt_ = Attempt::stopping;
  permission_ = Permission::not_needed;
  shortage_.reset();
  stop_deadline_ = now + limits_.stop_deadline;
  epoch_ += 1;
}

void GroupMachine::end_attempt_if_quiet(GroupActions& actions) {
  if (attempt_ != Attempt::running && attempt_ != Attempt::stopping) return;
  for (int rank = 0; rank < places(); ++rank)
    if (in_function(rank)) return;
  attempt_ = Attempt::none;
  stop_deadline_.reset();
  notice_deadline_.reset();
  if (!failure_) failure_ = std::move(suspicion_);
  const bool is_stuck = failure_ && failure_->code == ErrorCode::deadline;
  if (stop_asked_ && !is_stuck) failure_ = std::move(failed_first_);
  suspicion_.reset();
  actions.push_back(AttemptEnded{std::exchange(failure_, std::nullopt)});
}

void GroupMachine::saving(int rank) {
  if (in_function(rank)) slot(rank).saving = true;
}

/// Who does nothing but write is not hurried: a checkpoint would be lost. (A second Ctrl-C does that.)
void GroupMachine::stop_took_too_long(Time now, GroupActions& actions) {
  kill_or_abandon(actions, /*even_writing=*/false);
  std::vector<int> writing;
  for (int rank = 0; rank < places(); ++rank)
    if (slot(rank).state == State::running && slot(rank).saving && !slot(rank).killed) writing.push_back(rank_of(rank));
  if (writing.empty()) return;
  actions.push_back(Tell{
      fmt::format("rank {} still writes the checkpoints of the attempt that was stopped", fmt::join(writing, ", "))});
  stop_deadline_ = now + limits_.stop_deadline;
}

void GroupMachine::kill_or_abandon(GroupActions& actions, bool even_writing) {
  stop_deadline_.reset();
  for (int rank = 0; rank < places(); ++rank) {
    auto& s = slot(rank);
    if (s.state != State::running || s.killed || (s.saving && !even_writing)) continue;
    if (limits_.can_kill) {
      kill(rank, actions);
      continue;
    }
    s.state = State::stuck;
    s.stuck_inside = true;
    if (!s.member) continue;  // nobody needs it
    failure_ = Failure{FailureKind::fatal,
                       ErrorCode::deadline,
                       rank,
                       fmt::format("thread rank {} did not stop within {} ms (shutdown_deadline). A thread cannot be "
                                   "killed: let the function call train::report() or check train::should_stop(), or "
                                   "use placement process",
                                   rank_of(rank), limits_.stop_deadline.count()),
                       {}};
  }
  end_attempt_if_quiet(actions);
}

// ---- time -----------------------------------------------------------------------------------------------------------

GroupActions GroupMachine::tick(Time now) {
  GroupActions actions;
  if (leaving_) {
    tick_leave(now, actions);
    return actions;
  }
  if (attempt_ == Attempt::regrouping)
    tick_regrouping(now, actions);
  else if (stop_deadline_ && now >= *stop_deadline_)
    stop_took_too_long(now, actions);
  tick_preempted(now, actions);
  tick_dropped(now, actions);
  if (shortage_ && shortage_->again_at && now >= *shortage_->again_at) {
    shortage_->again_at.reset();
    launch_absent(now, actions);
  }
  if (grow_at_ && now >= *grow_at_ && attempt_ != Attempt::stopping) grow(now, actions);
  tick_starting(now, actions);
  return actions;
}

/// It has a deadline. A newcomer that is held has done its part; one that was dropped has another deadline; the end of
/// one that dies is told by lost(); and nobody waits for one that is to make the group larger, nor for an idle group,
/// in which a rank may be at a long call.
bool GroupMachine::is_coming_up(const Slot& s) const {
  if (s.killed || s.going || s.dropped) return false;
  const bool joins = s.joining && s.member && s.state == State::running && attempt_ == Attempt::regrouping;
  const bool forms = s.state == State::forming && (start_pending_ || attempt_ != Attempt::none);
  return s.state == State::starting || forms || joins;
}

void GroupMachine::tick_starting(Time now, GroupActions& actions) {
  std::vector<int> late_ranks;  // of this moment: the first one may end what the others came up for
  for (int rank = 0; rank < places(); ++rank)
    if (is_coming_up(slot(rank)) && now >= slot(rank).start_deadline) late_ranks.push_back(rank);
  for (int rank : late_ranks) {
    auto& s = slot(rank);
    const auto late = [&](const char* why) {
      return Failure{FailureKind::fatal,
                     ErrorCode::deadline,
                     rank,
                     fmt::format("rank {} was not up within {} ms (worker_start_deadline): {}", rank_of(rank),
                                 limits_.start_deadline.count(), why),
                     {}};
    };
    const char* const still = s.registered ? "its initialization hook, backend or object is still being set up"
                                           : "its process did not connect";
    if (!s.member) {
      do_without(rank, late(still).text, now, actions);
      continue;
    }
    if (s.state == State::running) {
      if (attempt_ != Attempt::regrouping) continue;  // another one was late as well
      auto failure = late("its function has not come to the point where it could join the others");
      if (do_without(rank, failure.text, now, actions)) continue;
      // The others do not wait for it any longer; all begin at a checkpoint.
      failure.kind = FailureKind::worker_lost;
      note_failure(std::move(failure));
      fall_back(now, actions);
      continue;
    }
    const bool replaces = !start_pending_ && s.state == State::starting;  // who hangs in a forming nobody knows
    if (limits_.can_kill)
      kill(rank, actions);
    else if (!in_function(rank))  // else it is told to leave that
      s.state = State::stuck;
    if (replaces && limits_.can_kill)
      could_not_start(late(still), now, actions);
    else if (!replaces || !do_without(rank, late(still).text, now, actions))
      give_up_start(late(still), now, actions);
  }
}

std::optional<Time> GroupMachine::deadline() const {
  std::optional<Time> next;
  const auto consider = [&](const std::optional<Time>& time) {
    if (time && (!next || *time < *next)) next = time;
  };
  consider(stop_deadline_);
  consider(term_deadline_);
  consider(kill_deadline_);
  if (leaving_) return next;
  if (attempt_ != Attempt::stopping) consider(grow_at_);
  consider(notice_deadline_);
  if (shortage_) consider(shortage_->again_at);
  for (const auto& s : slots_) {
    consider(s.taken_at);
    consider(s.leave_deadline);
    if (is_coming_up(s)) consider(s.start_deadline);
  }
  return next;
}

}  // namespace troupe::engine
