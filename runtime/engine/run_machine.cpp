// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/run_machine.hpp"

#include <utility>

namespace troupe::engine {

RunActions RunMachine::begin() {
  state_ = State::attempting;
  attempt_ += 1;
  next_attempt_at_.reset();
  return {BeginAttempt{attempt_}};
}

RunActions RunMachine::attempt_ended(std::optional<Failure> failure, Time now) {
  if (state_ == State::stopping) {
    // A thread that does not stop is worth more than the reason it was asked to.
    if (failure && failure->code == ErrorCode::deadline) return finish(RunStatus::failed, std::move(failure), "");
    return finish_stopped();
  }
  if (state_ != State::attempting) return {};
  if (!failure) return finish(RunStatus::succeeded, std::nullopt, "");
  last_decision_ = policy_.decide(*failure, now);
  if (!last_decision_.retry) return finish(RunStatus::failed, std::move(failure), last_decision_.reason);
  if (last_decision_.delay.count() == 0) return begin();
  state_ = State::waiting;
  next_attempt_at_ = now + last_decision_.delay;
  return {};
}

RunActions RunMachine::stop(StopReason reason, std::optional<Failure> failure) {
  if (state_ == State::finished || state_ == State::idle) return {};
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
  if (state_ != State::waiting || !next_attempt_at_ || now < *next_attempt_at_) return {};
  return begin();
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
  return {FinishRun{{status, std::move(failure), std::move(decision), attempt_}}};
}

}  // namespace troupe::engine
