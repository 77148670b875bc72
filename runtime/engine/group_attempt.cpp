// SPDX-License-Identifier: Apache-2.0
// The part of GroupMachine in which a function runs: from the begin of an attempt to its end.
#include <utility>

#include <fmt/format.h>

#include "runtime/engine/group_machine.hpp"

namespace troupe::engine {

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
    suspicion_ = failure;  // why the others could not go on, unless somebody was lost
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

}  // namespace troupe::engine
