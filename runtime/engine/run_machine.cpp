// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/run_machine.hpp"

#include <utility>

namespace troupe::engine {

void RunMachine::go_on_after(int attempts, const std::vector<Decision>& decisions, std::size_t before_progress) {
  attempt_ = attempts;
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    if (i == before_progress) policy_.progress();
    policy_.replay(decisions[i]);
  }
  if (before_progress >= decisions.size()) policy_.progress();
  decisions_ = decisions;
}

RunActions RunMachine::begin(Time now) {
  state_ = State::attempting;
  attempt_ += 1;
  granted_.reset();
  policy_.attempt_begun(now);
  next_attempt_at_.reset();
  return {BeginAttempt{attempt_}};
}

RunActions RunMachine::damaged(const Failure& failure, Time now) {
  if (state_ != State::attempting) return {};
  go_on_at_.reset();
  const auto decision = decide(failure, true, now);
  if (!decision.retry) {
    state_ = State::refused;
    refusal_ = decision.reason;
    return {FailAttempt{failure}};
  }
  granted_ = failure;
  if (decision.delay.count() == 0) return {GoOn{}};
  go_on_at_ = now + decision.delay;
  return {};
}

RetryDecision RunMachine::decide(const Failure& failure, bool in_place, Time now) {
  auto decision = policy_.decide(failure, now, in_place);
  decisions_.push_back(
      {now, attempt_, failure.kind, failure.rank, failure.text, failure.round, decision, in_place, failure.step});
  return decision;
}

void RunMachine::note(Decision decision) {
  decision.attempt = attempt_;
  decisions_.push_back(std::move(decision));
}

RunActions RunMachine::attempt_ended(std::optional<Failure> failure, Time now) {
  if (state_ == State::stopping) {
    // A thread that does not stop is worth more than the reason it was asked to, unless somebody pressed Ctrl-C: who
    // waits for that has heard enough, and shutdown() names the thread.
    const bool is_stuck = failure && failure->code == ErrorCode::deadline;
    if (is_stuck && stop_reason_ != StopReason::interrupted) return finish(RunStatus::failed, std::move(failure), "");
    if (failure && stop_reason_ == StopReason::asked && !is_granted(*failure)) {
      // It came before the stop. What would have ended the run does; what would have been tried again need not be.
      auto policy = policy_;
      if (auto decision = policy.decide(*failure, now, false); !decision.retry)
        return finish(RunStatus::failed, std::move(failure), std::move(decision.reason));
    }
    return finish_stopped();
  }
  const auto go_on_at = std::exchange(go_on_at_, std::nullopt);
  if (state_ == State::refused) return finish(RunStatus::failed, std::move(failure), refusal_);
  if (state_ != State::attempting) return {};
  if (!failure) return finish(RunStatus::succeeded, std::nullopt, "");
  if (is_granted(*failure)) {
    const bool is_same = failure->text == granted_->text;
    note({.time = now,
          .cause = FailureKind::resized,
          .error = "the workers could not go on in place" + (is_same ? "" : ": " + failure->text),
          .decision = {true, {}, "the function runs again, at no further cost"},
          .in_place = true});
    return begin_at(go_on_at.value_or(now), now);
  }
  const auto decision = decide(*failure, false, now);
  if (!decision.retry) return finish(RunStatus::failed, std::move(failure), decision.reason);
  return begin_at(now + decision.delay, now);
}

/// What was granted and could not be done in place is done again from a checkpoint, at no further cost.
bool RunMachine::is_granted(const Failure& failure) const {
  return granted_ && (failure.kind == FailureKind::worker_lost ||
                      (failure.kind == granted_->kind && failure.text == granted_->text));
}

RunActions RunMachine::begin_at(Time time, Time now) {
  if (time <= now) return begin(now);
  state_ = State::waiting;
  next_attempt_at_ = time;
  return {};
}

RunActions RunMachine::stop(StopReason reason, std::optional<Failure> failure) {
  if (state_ == State::finished || state_ == State::idle) return {};
  go_on_at_.reset();
  const bool again = stop_reason_.has_value();
  if (again && reason != StopReason::interrupted) return {};
  const bool second_interrupt = again && stop_reason_ == StopReason::interrupted;
  stop_reason_ = reason;
  stop_failure_ = std::move(failure);
  if (state_ == State::waiting) return finish_stopped();
  state_ = State::stopping;
  return {StopAttempt{second_interrupt}};
}

RunActions RunMachine::tick(Time now) {
  if (state_ == State::attempting && go_on_at_ && now >= *go_on_at_) {
    go_on_at_.reset();
    return {GoOn{}};
  }
  if (state_ != State::waiting || !next_attempt_at_ || now < *next_attempt_at_) return {};
  return begin(now);
}

RunActions RunMachine::finish_stopped() {
  switch (*stop_reason_) {
    case StopReason::asked:
      return finish(RunStatus::stopped, std::nullopt, "");
    case StopReason::interrupted:
      return finish(RunStatus::interrupted, std::nullopt, "");
    case StopReason::failure:
      break;
  }
  return finish(RunStatus::failed, std::move(stop_failure_), "");
}

RunActions RunMachine::finish(RunStatus status, std::optional<Failure> failure, std::string decision) {
  state_ = State::finished;
  next_attempt_at_.reset();
  return {FinishRun{{status, std::move(failure), std::move(decision), attempt_, decisions_}}};
}

}  // namespace troupe::engine
