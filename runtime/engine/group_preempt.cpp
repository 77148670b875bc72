// SPDX-License-Identifier: Apache-2.0
// The part of GroupMachine that replaces workers which are taken away with notice.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/engine/group_machine.hpp"

namespace troupe::engine {
namespace {

Failure taken_away(int rank) {
  return {FailureKind::preempted, ErrorCode::worker_lost, rank, "the function was left after the notice"};
}

}  // namespace

GroupActions GroupMachine::preempt(int rank, Time deadline, Time now) {
  GroupActions actions;
  auto& s = slot(rank);
  if (leaving_ || s.state == State::absent || s.state == State::stuck || s.killed || s.dropped) return actions;
  const bool told = std::exchange(s.preempted, true);
  s.taken_at = s.taken_at ? std::min(*s.taken_at, deadline) : deadline;
  if (attempt_ == Attempt::none) s.taken_at = now;  // nobody has anything to save
  if (!told) actions.push_back(Tell{fmt::format("rank {} is preempted and will be replaced", rank_of(rank))});
  if (deadline > now) announce_preempted(rank, actions);  // else nobody could answer in time
  tick_preempted(now, actions);
  return actions;
}

void GroupMachine::announce_preempted(int rank, GroupActions& actions) const {
  if (!slot(rank).taken_at) return;
  const bool concerns_all = slot(rank).member;  // the others do without a newcomer
  for (int other = 0; other < places(); ++other)
    if (in_function(other) && (concerns_all || other == rank))
      actions.push_back(SendNotice{other, rank, *slot(rank).taken_at});
}

/// `rank` has seen the notice and left its function. The others may still save: they have until the deadline.
void GroupMachine::answer_notice(int rank, GroupActions& actions) {
  const auto taken = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.member && s.preempted; });
  if (taken == slots_.end()) return;
  if (!failure_) failure_ = taken_away(static_cast<int>(taken - slots_.begin()));
  notice_deadline_ = taken->taken_at;
  auto& s = slot(rank);
  if (!limits_.can_kill) s.preempted = false;  // a thread is used again
  if (s.preempted) take(rank, actions);
}

/// Ends a worker that is not in the function. No attempt may begin with it.
void GroupMachine::take(int rank, GroupActions& actions) {
  auto& s = slot(rank);
  if (s.state == State::forming) {
    epoch_ += 1;
    abort_forming(actions);
  }
  s.killed = true;
  s.state = State::starting;
  abort_calls(actions);
  actions.push_back(KillWorker{rank, false});
}

void GroupMachine::tick_preempted(Time now, GroupActions& actions) {
  if (notice_deadline_ && now >= *notice_deadline_) {
    notice_deadline_.reset();
    halt_running(now, actions);
  }
  for (int rank = 0; rank < places(); ++rank) {
    auto& s = slot(rank);
    if (!s.taken_at || now < *s.taken_at) continue;
    s.taken_at.reset();
    if (in_function(rank) && limits_.can_kill) {
      actions.push_back(KillWorker{rank, false});  // its end is told by lost()
      continue;
    }
    if (in_function(rank) && s.member) {
      if (!failure_) failure_ = taken_away(rank);
      halt_running(now, actions);
    }
    if (limits_.can_kill && !s.killed && s.state != State::absent) take(rank, actions);
    s.preempted = limits_.can_kill;
    end_attempt_if_quiet(actions);
  }
}

}  // namespace troupe::engine
