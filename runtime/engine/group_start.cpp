// SPDX-License-Identifier: Apache-2.0
// The part of GroupMachine in which workers come up and form the group.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/engine/group_machine.hpp"

namespace troupe::engine {

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

}  // namespace troupe::engine
