// SPDX-License-Identifier: Apache-2.0
// Decides, as data, whether a failed attempt is followed by another one.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/settings.hpp"
#include "runtime/engine/failure.hpp"

namespace troupe::engine {

struct RetryLimits {
  int max_retries = 3;  ///< -1: no limit; counted for lost workers and for user errors apart
  bool retry_user_errors = false;
  /// So many restarts within `window`, or in a row, of attempts that died at once end the run.
  int window_restarts = 5;
  Duration window = std::chrono::seconds(60);
  Duration first_delay = std::chrono::milliseconds(100);  ///< the second restart without progress; then doubling
  Duration longest_delay = std::chrono::seconds(10);
  int fruitless_restarts = 3;    ///< so many restarts in a row without progress end the run; -1: no limit
  int window_preemptions = 100;  ///< so many within `preemption_window` without progress end the run
  Duration preemption_window = std::chrono::hours(1);
};

RetryLimits retry_limits(const detail::Settings& settings);

struct RetryDecision {
  bool retry = false;
  Duration delay{0};
  std::string reason;         ///< one line for people
  bool died_at_once = false;  ///< what is retried
  bool progressed = false;    ///< it got somewhere before that
};

/// What followed a failure: for the log, run.json and the journal.
struct Decision {
  Time time{};
  int attempt = 0;
  FailureKind cause = FailureKind::fatal;
  int rank = -1;
  std::string error;
  std::int64_t round = -1;
  RetryDecision decision;
  bool in_place = false;  ///< those that are left wait in the function
  std::optional<std::int64_t> step = {};
};

/// One line for the log.
std::string to_string(const Decision& made);

/// Counts restarts inside a sliding window.
class RestartWindow {
public:
  RestartWindow(int restarts, Duration window) : restarts_(restarts), window_(window) {}
  /// Notes a restart at `now`; false when there were too many.
  bool allow(Time now);
  void clear() { history_.clear(); }
  std::size_t count() const { return history_.size(); }

private:
  int restarts_;
  Duration window_;
  std::vector<Time> history_;  // oldest first
};

/// Restarts so far, by cause.
struct RestartCounts {
  int lost_workers = 0;
  int user_errors = 0;
  int preemptions = 0;
};

/// Three budgets (lost workers, user errors, preemptions), each with a window that ends crash loops, and an end for
/// runs that do not get anywhere, whatever the cause. What counts is the stretch from the begin of an attempt, or from
/// where it went on in place, to the next failure. One that ends before its first round or step, and soon, has died at
/// once: the window is for those. Any other stretch without progress is fruitless.
class FailurePolicy {
public:
  explicit FailurePolicy(RetryLimits limits);

  void attempt_begun(Time now);
  /// `in_place`: those that are left wait in the function. If they may go on, a new stretch begins with that.
  RetryDecision decide(const Failure& failure, Time now, bool in_place = false);
  /// A round or step was completed, perhaps one that an earlier attempt had completed too.
  void worked() { worked_ = true; }
  /// A round that no attempt has come to before, a committed checkpoint, or a step committed in place: whatever failed
  /// before, running again helped.
  void progress();
  /// A restart that an earlier program decided on.
  void replay(const Decision& decision);

  const RestartCounts& restarts() const { return counts_; }

private:
  /// Of one cause.
  struct Budget {
    RestartWindow window;
    int at_once = 0;           // stretches in a row that died at once
    int without_progress = 0;  // restarts: the back-off
  };
  RetryDecision decide_restart(const Failure& failure, Time now);
  RetryDecision decide_preemption(Time now);
  bool died_at_once(Time now) const;
  std::string why_hopeless(const Failure& failure, bool at_once, Time now);
  Budget& budget_of(FailureKind kind) { return kind == FailureKind::user_error ? user_errors_ : lost_workers_; }
  Duration next_delay(Budget& budget) const;

  RetryLimits limits_;
  Budget lost_workers_;
  Budget user_errors_;
  RestartWindow preemptions_;
  RestartCounts counts_;
  int fruitless_ = 0;  // restarts that got nowhere new
  bool is_restart_ = false;
  bool worked_ = false;
  bool progressed_ = false;
  Time begun_{};
  using Place = std::tuple<std::int64_t, std::optional<std::int64_t>, std::string>;
  std::optional<Place> last_user_error_;  // round, step and text
};

}  // namespace troupe::engine
