// SPDX-License-Identifier: Apache-2.0
// The life of one run: attempts, what ends them, and what follows. Pure: events in, actions out, time as an argument.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "runtime/engine/failure.hpp"
#include "runtime/engine/failure_policy.hpp"

namespace troupe::engine {

/// Who wants the run to end before the function returns.
enum class StopReason : std::uint8_t {
  asked,        ///< info.stop(), or an iterator that was dropped: ends well
  failure,      ///< a callback threw, the trainer was shut down: ends with that failure
  interrupted,  ///< Ctrl-C
};

enum class RunStatus : std::uint8_t { succeeded, stopped, failed, interrupted };

struct RunOutcome {
  RunStatus status = RunStatus::succeeded;
  std::optional<Failure> failure;
  std::string decision;  ///< why there was no further attempt
  int attempts = 1;
};

struct BeginAttempt {
  int attempt;
};
struct StopAttempt {
  bool at_once;
};
struct FinishRun {
  RunOutcome outcome;
};
using RunAction = std::variant<BeginAttempt, StopAttempt, FinishRun>;
using RunActions = std::vector<RunAction>;

class RunMachine {
public:
  explicit RunMachine(RetryLimits limits) : policy_(limits) {}

  RunActions begin();
  /// The attempt is over on all ranks.
  RunActions attempt_ended(std::optional<Failure> failure, Time now);
  /// `failure` is set for StopReason::failure. A second interrupt ends the attempt at once.
  RunActions stop(StopReason reason, std::optional<Failure> failure = std::nullopt);
  /// A round was completed.
  void progress() { policy_.progress(); }
  RunActions tick(Time now);
  /// When tick() wants to be called.
  std::optional<Time> deadline() const { return next_attempt_at_; }

  int attempt() const { return attempt_; }
  bool finished() const { return state_ == State::finished; }
  /// Why the last restart was decided on, for the log.
  const RetryDecision& last_decision() const { return last_decision_; }

private:
  enum class State { idle, attempting, waiting, stopping, finished };
  RunActions finish(RunStatus status, std::optional<Failure> failure, std::string decision);
  RunActions finish_stopped();

  FailurePolicy policy_;
  State state_ = State::idle;
  int attempt_ = 0;
  std::optional<StopReason> stop_reason_;
  std::optional<Failure> stop_failure_;
  std::optional<Time> next_attempt_at_;
  RetryDecision last_decision_;
};

}  // namespace troupe::engine
