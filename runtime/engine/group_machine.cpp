// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/group_machine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace troupe::engine {

GroupMachine::GroupMachine(GroupLimits limits)
    : limits_(limits),
      slots_(static_cast<std::size_t>(limits.world_size)),
      idle_restarts_(slots_.size(), RestartWindow(5, std::chrono::seconds(60))) {}

bool GroupMachine::all(State state) const {
  return std::all_of(slots_.begin(), slots_.end(), [state](const Slot& s) { return s.state == state; });
}

// ---- start ----------------------------------------------------------------------------------------------------------

GroupActions GroupMachine::start(Time now) {
  GroupActions actions;
  start_pending_ = true;
  launch_absent(now, actions);
  return actions;
}

void GroupMachine::launch(int rank, Time now, GroupActions& actions) {
  const int failures = slot(rank).start_failures;
  slot(rank) = Slot{};
  slot(rank).state = State::starting;
  slot(rank).start_failures = failures;
  slot(rank).start_deadline = now + limits_.start_deadline;
  epoch_ += 1;
  actions.push_back(LaunchWorker{rank});
}

void GroupMachine::launch_absent(Time now, GroupActions& actions) {
  for (int rank = 0; rank < limits_.world_size; ++rank)
    if (slot(rank).state == State::absent) launch(rank, now, actions);
}

void GroupMachine::registered(int rank) { slot(rank).registered = true; }

GroupActions GroupMachine::ready(int rank, Time now) {
  GroupActions actions;
  if (slot(rank).state != State::starting || leaving_) return actions;
  slot(rank).state = State::ready;
  slot(rank).start_failures = 0;
  proceed(now, actions);
  return actions;
}

/// What can be done once all workers are there: form, tell that the group is up, run.
void GroupMachine::proceed(Time now, GroupActions& actions) {
  if (!all(State::ready) || (!start_pending_ && attempt_ != Attempt::pending)) return;
  if (limits_.forms_group && formed_epoch_ != epoch_) return form_all(now, actions);
  if (std::exchange(start_pending_, false)) actions.push_back(GroupStarted{});
  if (attempt_ == Attempt::pending) run_all(actions);
}

void GroupMachine::form_all(Time now, GroupActions& actions) {
  for (int rank = 0; rank < limits_.world_size; ++rank) {
    slot(rank).state = State::forming;
    slot(rank).start_deadline = now + limits_.start_deadline;
    actions.push_back(SendForm{rank, epoch_});
  }
}

GroupActions GroupMachine::formed(int rank, std::uint64_t epoch, Time now) {
  GroupActions actions;
  if (slot(rank).state != State::forming || leaving_) return actions;
  slot(rank).state = State::ready;
  if (epoch == epoch_ && all(State::ready)) formed_epoch_ = epoch;
  proceed(now, actions);
  return actions;
}

GroupActions GroupMachine::form_failed(int rank, std::uint64_t epoch, Failure failure, Time now) {
  GroupActions actions;
  if (slot(rank).state != State::forming || leaving_) return actions;
  slot(rank).state = State::ready;
  if (epoch == epoch_ && failure.code != ErrorCode::group_lost) {
    epoch_ += 1;
    abort_forming(actions);
    give_up_start(std::move(failure), actions);
    return actions;
  }
  // A rank that noticed the loss of another before we did: nobody can form this epoch any more.
  if (epoch == epoch_) epoch_ += 1;
  abort_forming(actions);
  proceed(now, actions);
  return actions;
}

void GroupMachine::abort_forming(GroupActions& actions) {
  for (int rank = 0; rank < limits_.world_size; ++rank)
    if (slot(rank).state == State::forming) actions.push_back(SendHalt{rank});
}

GroupActions GroupMachine::setup_failed(Failure failure) {
  GroupActions actions;
  if (leaving_) return actions;
  // A replacement that is of no use; the next attempt makes a new one. (A start that fails ends all workers anyway.)
  if (!start_pending_ && failure.rank >= 0 && limits_.can_kill) {
    slot(failure.rank).killed = true;
    actions.push_back(KillWorker{failure.rank, false});
  }
  give_up_start(std::move(failure), actions);
  return actions;
}

GroupActions GroupMachine::launch_failed(Failure failure) {
  GroupActions actions;
  slot(failure.rank) = Slot{};
  if (leaving_)
    end_leave_if_gone(actions);
  else
    give_up_start(std::move(failure), actions);
  return actions;
}

void GroupMachine::give_up_start(Failure failure, GroupActions& actions) {
  failure.kind = FailureKind::fatal;
  if (start_pending_) {
    start_pending_ = false;
    actions.push_back(StartFailed{std::move(failure)});
  } else if (attempt_ == Attempt::pending) {
    attempt_ = Attempt::none;
    actions.push_back(AttemptEnded{std::move(failure)});
  }
}

// ---- attempts -------------------------------------------------------------------------------------------------------

GroupActions GroupMachine::begin_attempt(Time now) {
  GroupActions actions;
  if (leaving_) return actions;
  for (int rank = 0; rank < limits_.world_size; ++rank)
    if (slot(rank).state == State::stuck) {
      actions.push_back(AttemptEnded{Failure{
          FailureKind::fatal,
          ErrorCode::invalid_state,
          rank,
          fmt::format("thread rank {} still runs the function of an earlier run, so no new one can begin", rank),
          {}}});
      return actions;
    }
  failure_.reset();
  stop_deadline_.reset();
  attempt_ = Attempt::pending;
  launch_absent(now, actions);
  proceed(now, actions);
  return actions;
}

void GroupMachine::run_all(GroupActions& actions) {
  attempt_ = Attempt::running;
  for (int rank = 0; rank < limits_.world_size; ++rank) {
    slot(rank).state = State::running;
    actions.push_back(SendRun{rank});
  }
}

GroupActions GroupMachine::stop_attempt(bool at_once, Time now) {
  GroupActions actions;
  if (attempt_ == Attempt::pending) {
    attempt_ = Attempt::none;
    epoch_ += 1;
    abort_forming(actions);
    actions.push_back(AttemptEnded{std::nullopt});
    return actions;
  }
  if (attempt_ == Attempt::none) return actions;
  halt_running(now, actions);
  if (at_once) kill_or_abandon(actions);
  return actions;
}

GroupActions GroupMachine::fail_attempt(Failure failure, Time now) {
  GroupActions actions;
  if (attempt_ != Attempt::running) return actions;
  failure_ = std::move(failure);
  halt_running(now, actions);
  end_attempt_if_quiet(actions);
  return actions;
}

GroupActions GroupMachine::done(int rank, RankEnd end, std::optional<Failure> failure, Time now) {
  GroupActions actions;
  if (slot(rank).state != State::running) return actions;
  slot(rank).state = State::ready;
  if (end == RankEnd::threw && attempt_ == Attempt::running) {
    failure_ = std::move(failure);
    halt_running(now, actions);
  }
  // A rank may notice the death of another before the Node tells us; the cause follows with lost().
  if (end == RankEnd::stopped && attempt_ == Attempt::running) halt_running(now, actions);
  end_attempt_if_quiet(actions);
  return actions;
}

void GroupMachine::halt_running(Time now, GroupActions& actions) {
  if (attempt_ == Attempt::running) {
    attempt_ = Attempt::stopping;
    stop_deadline_ = now + limits_.stop_deadline;
    epoch_ += 1;
    for (int rank = 0; rank < limits_.world_size; ++rank)
      if (slot(rank).state == State::running) actions.push_back(SendHalt{rank});
  }
}

void GroupMachine::end_attempt_if_quiet(GroupActions& actions) {
  if (attempt_ != Attempt::running && attempt_ != Attempt::stopping) return;
  for (const auto& s : slots_)
    if (s.state == State::running) return;
  attempt_ = Attempt::none;
  stop_deadline_.reset();
  actions.push_back(AttemptEnded{std::exchange(failure_, std::nullopt)});
}

void GroupMachine::kill_or_abandon(GroupActions& actions) {
  stop_deadline_.reset();
  for (int rank = 0; rank < limits_.world_size; ++rank) {
    auto& s = slot(rank);
    if (s.state != State::running || s.killed) continue;
    if (limits_.can_kill) {
      s.killed = true;
      actions.push_back(KillWorker{rank, false});
      continue;
    }
    s.state = State::stuck;
    failure_ = Failure{FailureKind::fatal,
                       ErrorCode::deadline,
                       rank,
                       fmt::format("thread rank {} did not stop within {} ms (shutdown_deadline). A thread cannot be "
                                   "killed: let the function call train::report() or check train::should_stop(), or "
                                   "use placement process",
                                   rank, limits_.stop_deadline.count()),
                       {}};
  }
  end_attempt_if_quiet(actions);
}

// ---- losses ---------------------------------------------------------------------------------------------------------

GroupActions GroupMachine::disconnected(int rank, Time now) {
  GroupActions actions;
  if (slot(rank).state == State::running && attempt_ == Attempt::running && !leaving_) halt_running(now, actions);
  return actions;
}

GroupActions GroupMachine::lost(int rank, const std::string& cause, std::vector<std::string> log_lines, Time now) {
  GroupActions actions;
  auto& s = slot(rank);
  const auto before = s.state;
  if (before == State::absent || before == State::stuck) return actions;
  const bool expected = s.killed || leaving_;
  const int failures = s.start_failures;
  s = Slot{};
  s.start_failures = failures;
  if (leaving_) {
    end_leave_if_gone(actions);
    return actions;
  }
  if (before == State::starting && expected) {  // given up already, but the next attempt may have begun meanwhile
    if (attempt_ == Attempt::pending) launch(rank, now, actions);
    return actions;
  }
  if (before == State::starting) {
    lost_while_starting(rank, cause, std::move(log_lines), now, actions);
    return actions;
  }
  if (before == State::running) {
    if (!failure_ && !expected)
      failure_ = Failure{FailureKind::worker_lost, ErrorCode::worker_lost, rank, cause, std::move(log_lines)};
    halt_running(now, actions);
    launch(rank, now, actions);
    end_attempt_if_quiet(actions);
    return actions;
  }
  if (before == State::forming) {
    launch(rank, now, actions);
    abort_forming(actions);
    return actions;
  }
  // An idle worker (or one that has returned its result) is replaced quietly; a crash loop waits for the next run.
  if (idle_restarts_.at(static_cast<std::size_t>(rank)).allow(now)) launch(rank, now, actions);
  return actions;
}

void GroupMachine::lost_while_starting(int rank, const std::string& cause, std::vector<std::string> lines, Time now,
                                       GroupActions& actions) {
  auto& s = slot(rank);
  s.start_failures += 1;
  if (s.start_failures < limits_.start_attempts) return launch(rank, now, actions);
  give_up_start(
      {FailureKind::fatal, ErrorCode::start_failed, rank,
       fmt::format("rank {} could not be started: {} while starting ({} times)", rank, cause, s.start_failures),
       std::move(lines)},
      actions);
  s.start_failures = 0;
}

void GroupMachine::came_back(int rank) {
  if (slot(rank).state != State::stuck) return;
  slot(rank).state = State::ready;
  epoch_ += 1;  // it may have been forming a group that nobody waits for any more
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
  if (attempt_ != Attempt::none) {
    attempt_ = Attempt::none;
    actions.push_back(AttemptEnded{Failure{
        FailureKind::fatal, ErrorCode::invalid_state, -1, "the trainer was shut down while the run was active", {}}});
  }
  stop_deadline_.reset();
  term_deadline_ = now + patience / 2;
  kill_deadline_ = now + patience;
  for (int rank = 0; rank < limits_.world_size; ++rank) {
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
  for (int rank = 0; rank < limits_.world_size; ++rank) {
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
  for (int rank = 0; rank < limits_.world_size; ++rank) {
    auto& s = slot(rank);
    if (s.state == State::absent || s.state == State::stuck) continue;
    if (limits_.can_kill)
      actions.push_back(KillWorker{rank, !kill});
    else if (kill)
      s.state = State::stuck;
  }
  if (kill && !limits_.can_kill) end_leave_if_gone(actions);
}

// ---- time -----------------------------------------------------------------------------------------------------------

GroupActions GroupMachine::tick(Time now) {
  GroupActions actions;
  if (leaving_) {
    tick_leave(now, actions);
    return actions;
  }
  if (stop_deadline_ && now >= *stop_deadline_) kill_or_abandon(actions);
  for (int rank = 0; rank < limits_.world_size; ++rank) {
    auto& s = slot(rank);
    const bool coming_up = s.state == State::starting || s.state == State::forming;
    if (!coming_up || s.killed || now < s.start_deadline) continue;
    s.killed = true;
    if (limits_.can_kill)
      actions.push_back(KillWorker{rank, false});
    else
      s.state = State::stuck;
    give_up_start(
        {FailureKind::fatal,
         ErrorCode::deadline,
         rank,
         fmt::format("rank {} was not up within {} ms (worker_start_deadline){}", rank, limits_.start_deadline.count(),
                     s.registered ? ": its initialization hook, backend or object is still being set up"
                                  : ": its process did not connect"),
         {}},
        actions);
  }
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
  if (!leaving_)
    for (const auto& s : slots_)
      if ((s.state == State::starting || s.state == State::forming) && !s.killed) consider(s.start_deadline);
  return next;
}

}  // namespace troupe::engine
