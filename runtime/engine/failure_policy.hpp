// SPDX-License-Identifier: Apache-2.0
// Decides, as data, whether a failed attempt is followed by another one.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/failure.hpp"

namespace troupe::engine {

struct RetryLimits {
  int max_retries = 3;  ///< -1: no limit; counted for lost workers and for user errors apart
  bool retry_user_errors = false;
  int window_restarts = 5;  ///< so many restarts within `window` without progress end the run
  Duration window = std::chrono::seconds(60);
  Duration first_delay = std::chrono::milliseconds(100);  ///< the second restart without progress; then doubling
  Duration longest_delay = std::chrono::seconds(10);
};

struct RetryDecision {
  bool retry = false;
  Duration delay{0};
  std::string reason;  ///< one line for people
};

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

class FailurePolicy {
public:
  explicit FailurePolicy(RetryLimits limits) : limits_(limits), window_(limits.window_restarts, limits.window) {}

  RetryDecision decide(const Failure& failure, Time now);
  /// A round was completed: the next failure is not part of a crash loop.
  void progress();
  int restarts() const { return lost_workers_ + user_errors_; }

private:
  RetryLimits limits_;
  RestartWindow window_;
  int lost_workers_ = 0;
  int user_errors_ = 0;
  int without_progress_ = 0;
};

}  // namespace troupe::engine
