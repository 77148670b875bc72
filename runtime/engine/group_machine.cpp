// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/group_machine.hpp"

#include <algorithm>

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
