// SPDX-License-Identifier: Apache-2.0
// The part of GroupMachine that goes on in place after a loss, and with more or fewer workers.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/engine/group_machine.hpp"

namespace troupe::engine {
namespace {

std::string show_workers(int count) { return fmt::format("{} worker{}", count, count == 1 ? "" : "s"); }

}  // namespace

// ---- going on in place ----------------------------------------------------------------------------------------------
//
// All in the function are told to drop their collectives; each comes to rest in held(). Replacements run the function
// until they are held too. Then all form the group and go on.

GroupActions GroupMachine::live(int rank, bool is_live, Time now) {
  GroupActions actions;
  slot(rank).live = is_live;
  // Those that are to make the group larger may have waited for this.
  if (is_live && attempt_ == Attempt::running && can_regroup(-1)) take_in_newcomers(now, actions);
  return actions;
}

/// Somebody but `without` has the state, and all who are in the function can wait in it.
bool GroupMachine::can_regroup(int without) const {
  if (attempt_ != Attempt::running && attempt_ != Attempt::regrouping) return false;
  bool somebody = false;
  for (int rank = 0; rank < places(); ++rank) {
    const auto& s = slot(rank);
    if (rank == without || !s.member) continue;
    if (s.state == State::ready || s.state == State::stuck) return false;  // it has returned
    if (!in_function(rank) || s.joining) continue;
    if (!s.live) return false;
    somebody = true;
  }
  return somebody;
}

void GroupMachine::regroup(Permission permission, Time now, GroupActions& actions) {
  if (attempt_ == Attempt::regrouping) {
    // What happens before the answer belongs to the same incident.
    if (permission == Permission::needed && permission_ == Permission::not_needed && stop_deadline_)
      stop_deadline_ = now + limits_.rejoin_deadline;  // until now it waited for a change of size
    if (permission == Permission::needed && permission_ != Permission::asked) permission_ = permission;
    return;
  }
  attempt_ = Attempt::regrouping;
  permission_ = permission;
  stop_deadline_ = now + limits_.rejoin_deadline;
  epoch_ += 1;
  for (int rank : members())
    if (slot(rank).state == State::running) actions.push_back(SendAbort{rank});
}

/// A newcomer runs the function until it can join.
void GroupMachine::send_in(int rank, Time now, GroupActions& actions) {
  auto& s = slot(rank);
  s.state = State::running;
  s.joining = true;
  s.start_deadline = now + limits_.start_deadline;
  actions.push_back(SendRun{rank, true});
}

Failure GroupMachine::group_failed(int rank, const std::string& why) {
  return {FailureKind::worker_lost,
          ErrorCode::group_lost,
          rank,
          fmt::format("its collective failed, but no worker was lost: {}", why),
          {}};
}

GroupActions GroupMachine::held(int rank, const std::string& why, bool user_error, Time now, std::int64_t step) {
  GroupActions actions;
  auto& s = slot(rank);
  if (s.state != State::running || leaving_ || attempt_ == Attempt::stopping) return actions;
  s.state = State::held;
  if (s.dropped) {
    s.state = State::running;
    actions.push_back(SendHalt{rank});
    return actions;
  }
  if (!s.member) {
    take_in_newcomers(now, actions);
    return actions;
  }
  // What others threw in the same step belongs to the same incident.
  const bool is_new = user_error && !failure_;
  if (is_new) failure_ = Failure{FailureKind::user_error, ErrorCode::user_code, rank, why, {}, -1, step};
  if (!can_regroup(-1)) {
    suspicion_ = group_failed(rank, why);
    fall_back(now, actions, fmt::format("rank {}: {}", rank_of(rank), why));
    return actions;
  }
  if (attempt_ == Attempt::running) regroup(Permission::needed, now, actions);  // it noticed before we did
  if (is_new) {
    regroup(Permission::needed, now, actions);
    ask_to_go_on(actions);
  }
  if (!failure_ && permission_ == Permission::needed && all_members(State::held)) failure_ = group_failed(rank, why);
  proceed_regrouping(now, actions);
  return actions;
}

void GroupMachine::ask_to_go_on(GroupActions& actions) {
  if (permission_ != Permission::needed || !failure_) return;
  permission_ = Permission::asked;
  actions.push_back(AskToGoOn{*failure_});
}

GroupActions GroupMachine::go_on(Time now) {
  GroupActions actions;
  if (attempt_ != Attempt::regrouping || permission_ != Permission::asked) return actions;
  permission_ = Permission::given;
  proceed_regrouping(now, actions);
  return actions;
}

void GroupMachine::proceed_regrouping(Time now, GroupActions& actions) {
  if (attempt_ != Attempt::regrouping) return;
  if (!shortage_) launch_absent(now, actions);
  if (!all_members(State::held)) return;
  shortage_.reset();
  ask_to_go_on(actions);
  // The one whose death began this was let go before its end was told: there is no failure to decide upon.
  if (permission_ == Permission::needed) permission_ = Permission::not_needed;
  if (permission_ == Permission::asked) return;
  stop_deadline_.reset();
  const bool formed =
      std::all_of(slots_.begin(), slots_.end(), [this](const Slot& s) { return !s.member || s.formed == epoch_; });
  if (limits_.forms_group && !formed) return form_all(now, actions);
  resume_all(actions);
}

void GroupMachine::resume_all(GroupActions& actions) {
  attempt_ = Attempt::running;
  formed_epoch_ = epoch_;
  failed_formings_ = 0;
  permission_ = Permission::not_needed;
  failure_.reset();
  for (int rank : members()) {
    slot(rank).state = State::running;
    slot(rank).joining = false;
    slot(rank).start_failures = 0;
    actions.push_back(SendResume{rank});
  }
  // Who goes on has forgotten what it was told before, and newcomers were not told.
  for (int rank : members())
    if (slot(rank).preempted) announce_preempted(rank, actions);
}

/// Going on in place is not possible any more: all leave the function, and the next attempt begins at a checkpoint.
void GroupMachine::fall_back(Time now, GroupActions& actions, const std::string& why) {
  const bool regrouping = attempt_ == Attempt::regrouping;
  if (regrouping && permission_ == Permission::given && !why.empty())
    // What was lost is decided upon already; this is why it cannot be mended.
    failure_ = Failure{FailureKind::worker_lost, ErrorCode::group_lost, -1, why, {}};
  else if (regrouping && !failure_ && permission_ == Permission::not_needed)
    failure_ = Failure{FailureKind::resized,
                       ErrorCode::group_lost,
                       -1,
                       "the workers could not go on in place: " + (why.empty() ? "one left its function" : why),
                       {}};
  else if (regrouping && !suspicion_)  // somebody may be lost, which lost() has yet to tell
    suspicion_ = group_failed(-1, why.empty() ? "a worker left its function while another one waited" : why);
  halt_running(now, actions);
  end_attempt_if_quiet(actions);
}

/// `rank` is absent already, and the others can go on without what it knew.
void GroupMachine::lost_in_regrouping(int rank, Permission permission, Time now, GroupActions& actions) {
  regroup(permission, now, actions);
  ask_to_go_on(actions);
  // Those that formed a group with it form another one.
  epoch_ += 1;
  abort_forming(actions);
  launch(rank, now, actions);
}

void GroupMachine::tick_regrouping(Time now, GroupActions& actions) {
  if (!stop_deadline_ || now < *stop_deadline_) return;
  // Nobody failed: the group is to be larger or smaller, and that can wait for a long step.
  if (!failure_ && permission_ == Permission::not_needed) {
    std::vector<int> busy;
    for (int rank : members())
      if (slot(rank).state == State::running) busy.push_back(rank_of(rank));
    actions.push_back(Tell{
        fmt::format("the group is to change its size, and waits since {} ms for rank {} to come to the end of a step",
                    limits_.rejoin_deadline.count(), fmt::join(busy, ", "))});
    stop_deadline_ = now + limits_.rejoin_deadline;
    return;
  }
  stop_deadline_.reset();
  const bool somebody_waits = std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) {
    return s.member && s.state == State::held && !s.joining && !s.killed;
  });
  // Without the last ones that hold the state there would be nothing to go on with.
  if (!limits_.can_kill || !somebody_waits) return fall_back(now, actions);
  for (int rank = 0; rank < places(); ++rank) {
    const auto& s = slot(rank);
    if (s.state != State::running || s.joining || s.killed || s.dropped) continue;
    decide(fmt::format("rank {} did not leave its step within {} ms (rejoin_deadline)", rank_of(rank),
                       limits_.rejoin_deadline.count()),
           "it is replaced", now, actions);
    kill(rank, actions);
  }
}

// ---- more and fewer workers -----------------------------------------------------------------------------------------

void GroupMachine::decide(std::string why, std::string what, Time now, GroupActions& actions, Duration delay) {
  Decision made{.time = now, .cause = FailureKind::resized, .error = std::move(why)};
  made.decision = {true, delay, std::move(what)};
  made.in_place = true;
  actions.push_back(Decided{std::move(made)});
}

/// The group is only to change its size, and nobody waits for that yet but newcomers.
bool GroupMachine::may_all_return() const {
  if (permission_ != Permission::not_needed || failure_) return false;
  return std::all_of(slots_.begin(), slots_.end(), [](const Slot& s) {
    return !s.member || s.state == State::ready || s.state == State::running || (s.joining && s.state == State::held);
  });
}

/// All have returned before the group could change its size: who was to join comes too late.
void GroupMachine::end_regrouping_if_over(Time now, GroupActions& actions) {
  for (int rank : members())
    if (in_function(rank) && !slot(rank).joining) return;
  attempt_ = Attempt::running;
  stop_deadline_.reset();
  for (int rank : members())
    if (in_function(rank)) drop(rank, now, actions);
}

/// A member has returned its result: it is too late to run the function on more or fewer workers.
bool GroupMachine::is_ending() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.member && s.state == State::ready; }) &&
         (attempt_ == Attempt::running || attempt_ == Attempt::regrouping);
}

GroupActions GroupMachine::resize(int world_size, Time now) {
  GroupActions actions;
  if (leaving_) return actions;
  wanted_ = std::clamp(world_size, limits_.min_workers, places());
  asked_ = true;
  grow_at_.reset();
  growth_delay_ = limits_.first_growth_delay;
  if (surplus() > 0) {
    if (attempt_ != Attempt::running || can_regroup(-1))
      decide(fmt::format("resize({})", wanted_), "the group shrinks to " + show_workers(wanted_), now, actions);
    if (can_regroup(-1)) {
      drop_surplus(now, actions);
      regroup(Permission::not_needed, now, actions);
      proceed_regrouping(now, actions);
    } else if (attempt_ == Attempt::running && !is_ending()) {
      return fail_attempt(run_again(), now);
    } else if (attempt_ == Attempt::none || attempt_ == Attempt::pending) {
      drop_surplus(now, actions);
      proceed(now, actions);
    }
  } else {
    resizing_ = surplus() < 0;
    grow(now, actions);
    take_in_newcomers(now, actions);  // those that wait since before
  }
  return actions;
}

Failure GroupMachine::run_again() const {
  return {FailureKind::resized,
          ErrorCode::group_lost,
          -1,
          fmt::format("the function runs again on {}", show_workers(wanted_)),
          {}};
}

/// The last ones go.
void GroupMachine::drop_surplus(Time now, GroupActions& actions) {
  // Newcomers first, in the function or on their way to it: others may hold the only state.
  for (const bool newcomers : {true, false})
    for (int rank = places() - 1; rank >= 0 && surplus() > 0; --rank)
      if (slot(rank).member && (slot(rank).joining || !in_function(rank)) == newcomers) drop(rank, now, actions);
  drop_newcomers(now, actions);
}

/// Those on their way for whom there is no place any more.
void GroupMachine::drop_newcomers(Time now, GroupActions& actions) {
  int places_left = std::max(0, -surplus());
  for (int rank = 0; rank < places(); ++rank) {
    const auto& s = slot(rank);
    if (s.member || s.dropped || s.state == State::absent || s.state == State::stuck) continue;
    if (--places_left < 0) drop(rank, now, actions);
  }
}

void GroupMachine::drop(int rank, Time now, GroupActions& actions) {
  auto& s = slot(rank);
  if (std::exchange(s.member, false)) epoch_ += 1;
  if (s.state == State::absent || s.state == State::stuck) return;
  s.dropped = true;
  if (limits_.can_kill) s.leave_deadline = now + limits_.stop_deadline;
  if (s.state == State::forming) abort_forming(actions);
  if (s.state == State::held) s.state = State::running;
  if (s.killed) return;  // it goes already
  if (in_function(rank))
    actions.push_back(SendHalt{rank});
  else if (s.registered)
    actions.push_back(SendLeave{rank});
  else if (limits_.can_kill)
    actions.push_back(KillWorker{rank, false});
}

void GroupMachine::tick_dropped(Time now, GroupActions& actions) {
  for (int rank = 0; rank < places(); ++rank) {
    auto& s = slot(rank);
    if (!s.leave_deadline || now < *s.leave_deadline) continue;
    s.leave_deadline.reset();
    if (s.saving)  // a checkpoint would be lost
      s.leave_deadline = now + limits_.stop_deadline;
    else
      kill(rank, actions);
  }
}

GroupActions GroupMachine::use_room(Time now) {
  GroupActions actions;
  grow_if_wanted(now, actions);
  return actions;
}

void GroupMachine::grow_if_wanted(Time now, GroupActions& actions) {
  if (!leaving_ && !start_pending_ && !grow_at_ && attempt_ != Attempt::stopping) grow(now, actions);
}

/// So many more should be there.
int GroupMachine::missing() const {
  int count = (asked_ ? wanted_ : std::clamp(room_, limits_.min_workers, wanted_)) - member_count();
  for (const auto& s : slots_)
    if (!s.member && !s.dropped && s.state != State::absent) count -= 1;  // on its way
  return count;
}

/// Starts the workers that are missing. They take part once they can join the others.
void GroupMachine::grow(Time now, GroupActions& actions) {
  grow_at_.reset();
  int more = missing();
  for (int rank = 0; rank < places() && more > 0; ++rank) {
    if (slot(rank).member || slot(rank).state != State::absent) continue;
    launch(rank, now, actions);
    more -= 1;
  }
}

/// Those that are to make the group larger take part as soon as they can. While the function runs, that is where it can
/// be joined: each runs it alone until it is held there, and nobody waits for it. Who asked for several gets them
/// together.
void GroupMachine::take_in_newcomers(Time now, GroupActions& actions) {
  drop_newcomers(now, actions);
  std::vector<int> newcomers;
  bool more_come = false;
  for (int rank = 0; rank < places(); ++rank) {
    const auto& s = slot(rank);
    if (s.member || s.dropped || s.state == State::absent || s.state == State::stuck) continue;
    if (s.state == State::starting)
      more_come = true;
    else
      newcomers.push_back(rank);
  }
  if (attempt_ == Attempt::stopping || (resizing_ && more_come)) return;  // the next attempt, or the last of them
  if (newcomers.empty()) return;
  if (attempt_ == Attempt::none || attempt_ == Attempt::pending) return let_in(newcomers, now, actions);
  if (!can_regroup(-1)) {
    // A function that cannot go on in place is disturbed only if somebody asked, and not at its end.
    if (is_ending() || !std::exchange(resizing_, false)) return;
    note_failure(run_again());
    halt_running(now, actions);
    return end_attempt_if_quiet(actions);
  }
  for (int rank : newcomers)
    if (slot(rank).state == State::ready) send_in(rank, now, actions);
  const auto on_their_way = std::erase_if(newcomers, [this](int rank) { return slot(rank).state != State::held; });
  if (!newcomers.empty() && (!resizing_ || on_their_way == 0)) let_in(newcomers, now, actions);
}

void GroupMachine::let_in(const std::vector<int>& newcomers, Time now, GroupActions& actions) {
  for (int rank : newcomers) slot(rank).member = true;
  epoch_ += 1;
  growth_delay_ = limits_.first_growth_delay;
  const auto why = std::exchange(resizing_, false) ? fmt::format("resize({})", wanted_) : "there is room for more";
  decide(why, "the group grows to " + show_workers(member_count()), now, actions);
  if (attempt_ != Attempt::running && attempt_ != Attempt::regrouping) return;
  regroup(Permission::not_needed, now, actions);
  abort_forming(actions);
  proceed_regrouping(now, actions);
}

void GroupMachine::plan_growth(Time now) {
  grow_at_ = now + growth_delay_;
  growth_delay_ = std::min(growth_delay_ * 2, limits_.longest_growth_delay);
}

/// Goes on without this one, if that is allowed, and tries to get another one later.
bool GroupMachine::do_without(int rank, const std::string& why, Time now, GroupActions& actions) {
  const bool was_member = slot(rank).member;
  if (was_member && member_count() - 1 < limits_.min_workers) return false;
  if (was_member && attempt_ == Attempt::running) return false;  // it had returned, and its result counts
  plan_growth(now);
  drop(rank, now, actions);
  decide(why, "the group goes on with " + show_workers(member_count()), now, actions);
  if (was_member && attempt_ == Attempt::regrouping) {
    abort_forming(actions);
    proceed_regrouping(now, actions);
    return true;
  }
  if (!was_member) take_in_newcomers(now, actions);  // those that came with it
  proceed(now, actions);
  return true;
}

}  // namespace troupe::engine
