// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/failure_policy.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace troupe::engine {

bool RestartWindow::allow(Time now) {
  std::erase_if(history_, [&](Time restart) { return now - restart >= window_; });
  if (static_cast<int>(history_.size()) >= restarts_) return false;
  history_.push_back(now);
  return true;
}

RetryDecision FailurePolicy::decide(const Failure& failure, Time now) {
  if (failure.kind == FailureKind::fatal) return {false, {}, "running again cannot help"};
  const bool user_error = failure.kind == FailureKind::user_error;
  if (user_error && !limits_.retry_user_errors)
    return {false, {}, "exceptions of the train function are not retried (option retry_user_errors)"};

  int& count = user_error ? user_errors_ : lost_workers_;
  if (limits_.max_retries >= 0 && count >= limits_.max_retries)
    return {false, {}, fmt::format("max_retries = {} is used up", limits_.max_retries)};
  if (!window_.allow(now))
    return {false,
            {},
            fmt::format("{} restarts within {} s without a completed round between them", limits_.window_restarts,
                        std::chrono::duration_cast<std::chrono::seconds>(limits_.window).count())};
  count += 1;
  Duration delay{0};
  if (without_progress_ > 0) {
    const int doublings = std::min(without_progress_ - 1, 20);
    delay = std::min(limits_.longest_delay, limits_.first_delay * (1 << doublings));
  }
  without_progress_ += 1;
  return {
      true, delay,
      fmt::format("restart {} of {}", count, limits_.max_retries < 0 ? "any" : std::to_string(limits_.max_retries))};
}

void FailurePolicy::progress() {
  window_.clear();
  without_progress_ = 0;
}

}  // namespace troupe::engine
