// SPDX-License-Identifier: Apache-2.0
// The life of one run: attempts, what ends them, and what follows. Pure: events in, actions out, time as an argument.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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
  std::vector<Decision> decisions = {};  ///< all that were made, oldest first
};

struct BeginAttempt {
  int attempt;
};
struct StopAttempt {
  bool at_once;
};
/// The workers may go on in place.
struct GoOn {};
/// They may not: the attempt ends with this.
struct FailAttempt {
  Failure failure;
};
struct FinishRun {
  RunOutcome outcome;
};
using RunAction = std::variant<BeginAttempt, StopAttempt, GoOn, FailAttempt, FinishRun>;
using RunActions = std::vector<RunAction>;

class RunMachine {
public:
  explicit RunMachine(RetryLimits limits) : policy_(limits) {}

  /// Before begin(): what an earlier program has done in this run. So many of the decisions came before its latest
  /// progress.
  void go_on_after(int attempts, const std::vector<Decision>& decisions, std::size_t before_progress);
  RunActions begin(Time now);
  /// Ranks were lost; the others wait inside the function for leave to go on in place.
  RunActions damaged(const Failure& failure, Time now);
  /// The attempt is over on all ranks. The failure of one that was asked to stop is older than that, or a rank that did
  /// not stop.
  RunActions attempt_ended(std::optional<Failure> failure, Time now);
  /// `failure` is set for StopReason::failure. A second interrupt ends the attempt at once.
  RunActions stop(StopReason reason, std::optional<Failure> failure = std::nullopt);
  /// One that the group made by itself, about its size.
  void note(Decision decision);
  /// See FailurePolicy.
  void worked() { policy_.worked(); }
  void progress() { policy_.progress(); }
  /// What was damaged has been mended in place: what fails from now on is something else.
  void went_on() { granted_.reset(); }
  RunActions tick(Time now);
  /// When tick() wants to be called.
  std::optional<Time> deadline() const { return next_attempt_at_ ? next_attempt_at_ : go_on_at_; }

  int attempt() const { return attempt_; }
  bool finished() const { return state_ == State::finished; }
  /// What followed each failure.
  const std::vector<Decision>& decisions() const { return decisions_; }
  const RestartCounts& restarts() const { return policy_.restarts(); }

private:
  enum class State { idle, attempting, waiting, refused, stopping, finished };
  RetryDecision decide(const Failure& failure, bool in_place, Time now);
  bool is_granted(const Failure& failure) const;
  RunActions begin_at(Time time, Time now);
  RunActions finish(RunStatus status, std::optional<Failure> failure, std::string decision);
  RunActions finish_stopped();

  FailurePolicy policy_;
  State state_ = State::idle;
  int attempt_ = 0;
  std::optional<StopReason> stop_reason_;
  std::optional<Failure> stop_failure_;
  std::optional<Time> next_attempt_at_;
  std::optional<Time> go_on_at_;
  std::optional<Failure> granted_;  // the damage that was decided upon, and is not mended yet
  std::string refusal_;             // why the attempt may not go on in place
  std::vector<Decision> decisions_;
};

}  // namespace troupe::engine
