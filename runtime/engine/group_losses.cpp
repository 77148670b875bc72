// SPDX-License-Identifier: Apache-2.0
// The part of GroupMachine in which workers end: they are lost, given up, or told to leave.
#include <utility>

#include <fmt/format.h>

#include "runtime/engine/group_machine.hpp"

namespace troupe::engine {
namespace {

/// From SIGTERM to SIGKILL when workers do not leave in time.
constexpr Duration after_term = std::chrono::milliseconds(500);

}  // namespace

// ---- losses ---------------------------------------------------------------------------------------------------------

/// Its death is no failure, unless it was dying already.
void GroupMachine::kill(int rank, GroupActions& actions) {
  slot(rank).killed = !slot(rank).going;
  actions.push_back(KillWorker{rank, false});
}

/// The first failure of an incident is its reason; what comes after the permission to go on is another one, and a
/// change of size, which costs nothing, is no excuse for it.
void GroupMachine::note_failure(Failure failure) {
  const bool is_another =
      (failure_ && failure_->kind == FailureKind::resized) ||
      (attempt_ == Attempt::regrouping && (permission_ == Permission::given || permission_ == Permission::not_needed));
  if (!failure_ || is_another) failure_ = std::move(failure);
}

GroupActions GroupMachine::disconnected(int rank, Time now) {
  GroupActions actions;
  auto& s = slot(rank);
  if (s.dropped) return actions;  // the others do without it
  s.going = !s.killed;
  if (s.member && s.state == State::running && attempt_ == Attempt::running && !leaving_) {
    if (can_regroup(rank))
      regroup(Permission::needed, now, actions);
    else
      halt_running(now, actions);
  }
  return actions;
}

GroupActions GroupMachine::give_up(int rank, const std::string& cause, Time now) {
  const auto& s = slot(rank);
  if (s.state == State::absent || s.state == State::stuck || s.killed || leaving_) return {};
  GroupActions actions;
  if (!limits_.can_kill) {
    if (s.dropped) return actions;
    Failure failure{FailureKind::fatal, ErrorCode::deadline, rank, fmt::format("rank {} is {}", rank_of(rank), cause)};
    const bool is_newcomer = !s.member || (s.joining && attempt_ == Attempt::regrouping);
    if (is_newcomer && do_without(rank, failure.text, now, actions)) return actions;
    return fail_attempt(std::move(failure), now);
  }
  actions = disconnected(rank, now);
  actions.push_back(KillWorker{rank, false});
  return actions;
}

GroupActions GroupMachine::lost(int rank, const std::string& cause, std::vector<std::string> log_lines, Time now) {
  GroupActions actions;
  auto& s = slot(rank);
  const auto before = s.state;
  if (before == State::absent) return actions;
  const bool expected = s.killed || leaving_;
  const bool was_in_function = in_function(rank);
  const bool was_joining = s.joining;
  const bool was_dropped = s.dropped;
  const bool was_promoted = s.promoted;
  const auto kind = s.preempted ? FailureKind::preempted : FailureKind::worker_lost;
  s = Slot{.member = s.member, .start_failures = s.start_failures, .dead_spares = s.dead_spares};
  failed_formings_ = 0;
  if (leaving_) {
    end_leave_if_gone(actions);
    return actions;
  }
  if (was_dropped || before == State::stuck) {  // nobody counts on it
    grow_if_wanted(now, actions);               // its place is free
    end_attempt_if_quiet(actions);
    return actions;
  }
  if (before == State::starting && expected) {  // given up already, but others may have begun to wait for it meanwhile
    const bool is_later = shortage_ && shortage_->again_at;
    const bool awaited = !is_later && (attempt_ == Attempt::pending || attempt_ == Attempt::regrouping);
    if (awaited || kind == FailureKind::preempted) launch(rank, now, actions);
    return actions;
  }
  if (before == State::starting && was_promoted && s.dead_spares < limits_.spares) {
    s.dead_spares += 1;
    launch(rank, now, actions);
    return actions;
  }
  if (before == State::starting) {
    lost_while_starting(rank, cause + " while starting", std::move(log_lines), now, actions);
    return actions;
  }
  if (!s.member) {  // it was to make the group larger
    if (attempt_ != Attempt::stopping)
      do_without(rank, fmt::format("a newcomer was lost before it could join the others: {}", cause), now, actions);
    end_attempt_if_quiet(actions);
    return actions;
  }
  // The others could do without it, and are not charged for it.
  if (was_joining && attempt_ == Attempt::regrouping && !expected && kind != FailureKind::preempted &&
      member_count() > limits_.min_workers) {
    abort_forming(actions);  // before the others form without it
    lost_while_starting(rank, cause + " before it could join the others", std::move(log_lines), now, actions);
    return actions;
  }
  if (was_in_function) {
    // One that we ended because it did not leave its step is no failure, but nobody has returned either.
    if (!expected || attempt_ != Attempt::stopping)
      note_failure({expected ? FailureKind::resized : kind, ErrorCode::worker_lost, rank, cause, std::move(log_lines)});
    if (can_regroup(rank)) {
      lost_in_regrouping(rank, expected ? Permission::not_needed : Permission::needed, now, actions);
      return actions;
    }
    halt_running(now, actions);
    launch(rank, now, actions);
    end_attempt_if_quiet(actions);
    return actions;
  }
  if (before == State::forming) {
    if (expected || kind == FailureKind::preempted)
      launch(rank, now, actions);
    else
      lost_while_starting(rank, cause + " while starting", std::move(log_lines), now, actions);
    abort_forming(actions);
    return actions;
  }
  abort_calls(actions);
  abort_forming(actions);  // it had formed the group already, and others have not
  // An idle worker (or one that has returned its result) is replaced quietly; a crash loop waits for the next run.
  const bool awaited = start_pending_ || attempt_ == Attempt::pending;
  if (awaited || idle_restarts_.at(static_cast<std::size_t>(rank)).allow(now)) launch(rank, now, actions);
  return actions;
}

void GroupMachine::lost_while_starting(int rank, const std::string& cause, std::vector<std::string> lines, Time now,
                                       GroupActions& actions) {
  auto& s = slot(rank);
  s.start_failures += 1;
  if (!shortage_ && s.start_failures < limits_.start_attempts) return launch(rank, now, actions);
  could_not_start({FailureKind::fatal, ErrorCode::start_failed, rank,
                   fmt::format("rank {} could not be started: {} ({} times)", rank_of(rank), cause, s.start_failures),
                   std::move(lines)},
                  now, actions);
  if (!shortage_) s.start_failures = 0;
}

GroupActions GroupMachine::came_back(int rank, bool from_function) {
  auto& s = slot(rank);
  if (s.state != State::stuck || (s.stuck_inside && !from_function)) return {};
  s.state = State::ready;
  s.stuck_inside = false;
  epoch_ += 1;  // it may have been forming a group that nobody waits for any more
  if (s.dropped) return {SendLeave{rank}};
  return {};
}

GroupActions GroupMachine::frozen(int rank, bool is_frozen) {
  GroupActions actions;
  slot(rank).frozen = is_frozen;
  // A stopped process would sleep through SIGTERM.
  if (is_frozen && leaving_ && slot(rank).state != State::absent) actions.push_back(KillWorker{rank, false});
  return actions;
}

// ---- shutdown -------------------------------------------------------------------------------------------------------

GroupActions GroupMachine::leave(Duration patience, Time now) {
  GroupActions actions;
  if (leaving_) return actions;
  leaving_ = true;
  start_pending_ = false;
  shortage_.reset();
  if (attempt_ != Attempt::none) {
    attempt_ = Attempt::none;
    actions.push_back(AttemptEnded{Failure{FailureKind::fatal, ErrorCode::invalid_state, -1, shut_down_text, {}}});
  }
  stop_deadline_.reset();
  term_deadline_ = now + patience;
  kill_deadline_ = now + patience + (limits_.can_kill ? after_term : Duration::zero());
  for (int rank = 0; rank < places(); ++rank) {
    auto& s = slot(rank);
    if (s.state == State::absent) continue;
    if (s.state == State::stuck) s.state = State::running;  // one more chance: it may have ended, or end soon
    if (s.registered && !s.frozen)
      actions.push_back(SendLeave{rank});
    else if (limits_.can_kill)
      actions.push_back(KillWorker{rank, false});
  }
  end_leave_if_gone(actions);
  return actions;
}

void GroupMachine::end_leave_if_gone(GroupActions& actions) {
  if (gone_) return;
  std::vector<int> stuck;
  for (int rank = 0; rank < places(); ++rank) {
    if (slot(rank).state == State::stuck)
      stuck.push_back(rank);
    else if (slot(rank).state != State::absent)
      return;
  }
  gone_ = true;
  term_deadline_.reset();
  kill_deadline_.reset();
  actions.push_back(GroupGone{std::move(stuck)});
}

void GroupMachine::tick_leave(Time now, GroupActions& actions) {
  const bool kill = kill_deadline_ && now >= *kill_deadline_;
  const bool terminate = term_deadline_ && now >= *term_deadline_;
  if (!kill && !terminate) return;
  term_deadline_.reset();
  if (kill) kill_deadline_.reset();
  for (int rank = 0; rank < places(); ++rank) {
    auto& s = slot(rank);
    if (s.state == State::absent || s.state == State::stuck) continue;
    if (limits_.can_kill)
      actions.push_back(KillWorker{rank, !kill});
    else if (kill)
      s.state = State::stuck;
  }
  if (kill && !limits_.can_kill) end_leave_if_gone(actions);
}

}  // namespace troupe::engine
