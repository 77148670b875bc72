// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/failure_policy.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace troupe::engine {
namespace {

long long seconds(Duration duration) { return std::chrono::duration_cast<std::chrono::seconds>(duration).count(); }

std::string place_of(const Failure& failure) {
  if (!failure.step) return fmt::format("after round {}", failure.round);
  return *failure.step < 0 ? "before its first step" : fmt::format("after step {}", *failure.step);
}

}  // namespace

RetryLimits retry_limits(const detail::Settings& settings) {
  const auto& policy = settings.retry_policy;
  return {.max_retries = settings.max_retries,
          .retry_user_errors = settings.retry_user_errors,
          .window_restarts = policy.crash_loop_restarts,
          .window = policy.crash_loop_window,
          .first_delay = policy.first_delay,
          .longest_delay = policy.longest_delay,
          .fruitless_restarts = policy.restarts_without_progress};
}

std::string_view cause_name(FailureKind kind) {
  switch (kind) {
    case FailureKind::worker_lost:
      return "lost worker";
    case FailureKind::user_error:
      return "user error";
    case FailureKind::preempted:
      return "preemption";
    case FailureKind::resized:
      return "resize";
    case FailureKind::fatal:
      break;
  }
  return "fatal";
}

std::string to_string(const Decision& made) {
  const auto& decision = made.decision;
  const auto later = decision.delay.count() == 0 ? "" : fmt::format(" in {} ms", decision.delay.count());
  if (made.in_place && made.cause == FailureKind::resized)
    return fmt::format("{}; {}{}", made.error, decision.reason, later);
  auto text = fmt::format("attempt {} {} ({}): ", made.attempt, made.in_place ? "is damaged" : "failed",
                          cause_name(made.cause));
  if (made.rank >= 0) text += fmt::format("rank {} ", made.rank);
  text += made.error + "; ";
  if (!decision.retry) return text + "the run ends: " + decision.reason;
  if (made.in_place) text += "the others go on in place: ";
  return text + decision.reason + (later.empty() ? " at once" : later);
}

bool RestartWindow::allow(Time now) {
  std::erase_if(history_, [&](Time restart) { return now - restart >= window_; });
  if (static_cast<int>(history_.size()) >= restarts_) return false;
  history_.push_back(now);
  return true;
}

FailurePolicy::FailurePolicy(RetryLimits limits)
    : limits_(limits),
      lost_workers_{RestartWindow(limits.window_restarts, limits.window)},
      user_errors_(lost_workers_),
      preemptions_(limits.window_preemptions, limits.preemption_window) {}

void FailurePolicy::attempt_begun(Time now) {
  begun_ = now;
  worked_ = false;
  progressed_ = false;
}

RetryDecision FailurePolicy::decide(const Failure& failure, Time now, bool in_place) {
  auto decision = decide_restart(failure, now);
  decision.progressed = progressed_;
  if (in_place && decision.retry) attempt_begun(now + decision.delay);
  return decision;
}

RetryDecision FailurePolicy::decide_restart(const Failure& failure, Time now) {
  if (failure.kind == FailureKind::fatal) return {false, {}, "running again cannot help"};
  if (failure.kind == FailureKind::resized) return {true, {}, "the number of workers changes"};
  if (failure.kind == FailureKind::preempted) return decide_preemption(now);
  const bool user_error = failure.kind == FailureKind::user_error;
  if (user_error && !limits_.retry_user_errors)
    return {false, {}, "exceptions of the train function are not retried (option retry_user_errors)"};

  int& count = user_error ? counts_.user_errors : counts_.lost_workers;
  if (limits_.max_retries >= 0 && count >= limits_.max_retries)
    return {false, {}, fmt::format("max_retries = {} is used up", limits_.max_retries)};
  const bool at_once = died_at_once(now);
  if (auto why = why_hopeless(failure, at_once, now); !why.empty()) return {false, {}, std::move(why)};
  count += 1;
  is_restart_ = true;
  return {true, next_delay(budget_of(failure.kind)),
          fmt::format("restart {} of {}", count, limits_.max_retries < 0 ? "any" : std::to_string(limits_.max_retries)),
          at_once};
}

/// Restarts that cannot be expected to help, whatever is left of the budget.
std::string FailurePolicy::why_hopeless(const Failure& failure, bool at_once, Time now) {
  if (failure.kind == FailureKind::user_error && (failure.round >= 0 || failure.step)) {
    const Place place(failure.round, failure.step, failure.text);
    if (last_user_error_ == place)
      return fmt::format("the same exception as before at the same place ({})", place_of(failure));
    last_user_error_ = place;
  }
  auto& budget = budget_of(failure.kind);
  if (at_once) {
    if (!budget.window.allow(now))
      return fmt::format("crash loop: {} restarts within {} s without progress between them", limits_.window_restarts,
                         seconds(limits_.window));
    // Long pauses between them take restarts out of the window, but do not make them any better.
    if (++budget.at_once <= limits_.window_restarts) return {};
    return fmt::format("crash loop: {} restarts in a row that died at once", limits_.window_restarts);
  }
  budget.at_once = 0;
  if (!is_restart_ || progressed_) return {};
  fruitless_ += 1;
  if (limits_.fruitless_restarts < 0 || fruitless_ < limits_.fruitless_restarts) return {};
  return fmt::format("no progress in {} restarts: no round or step that was not seen before, and no checkpoint",
                     fruitless_);
}

/// So soon that the crash loop's limits, not the count of fruitless restarts, ends a series of such deaths.
bool FailurePolicy::died_at_once(Time now) const {
  return !worked_ && !progressed_ && now - begun_ < limits_.window / (2 * std::max(limits_.window_restarts, 1));
}

RetryDecision FailurePolicy::decide_preemption(Time now) {
  if (!preemptions_.allow(now))
    return {false,
            {},
            fmt::format("{} preemptions within {} s without progress between them", limits_.window_preemptions,
                        seconds(limits_.preemption_window))};
  counts_.preemptions += 1;
  return {true, Duration{0}, fmt::format("restart after preemption {}, which costs no retry", counts_.preemptions)};
}

Duration FailurePolicy::next_delay(Budget& budget) const {
  Duration delay{0};
  if (budget.without_progress > 0) {
    const int doublings = std::min(budget.without_progress - 1, 20);
    delay = std::min(limits_.longest_delay, limits_.first_delay * (1 << doublings));
  }
  budget.without_progress += 1;
  return delay;
}

void FailurePolicy::progress() {
  for (auto* budget : {&lost_workers_, &user_errors_}) {
    budget->window.clear();
    budget->at_once = 0;
    budget->without_progress = 0;
  }
  preemptions_.clear();
  fruitless_ = 0;
  progressed_ = true;
  // Nobody knows where in the function that was: it may come much later this time.
  if (last_user_error_ && std::get<0>(*last_user_error_) <= 0 && !std::get<1>(*last_user_error_))
    last_user_error_.reset();
}

void FailurePolicy::replay(const Decision& decision) {
  if (!decision.decision.retry || decision.cause == FailureKind::resized) return;
  if (decision.decision.progressed) progress();
  if (decision.cause == FailureKind::preempted) {
    counts_.preemptions += 1;
    preemptions_.allow(decision.time);
    progressed_ = false;
    return;
  }
  const bool user_error = decision.cause == FailureKind::user_error;
  (user_error ? counts_.user_errors : counts_.lost_workers) += 1;
  if (user_error) last_user_error_.emplace(decision.round, decision.step, decision.error);
  auto& budget = budget_of(decision.cause);
  budget.at_once = decision.decision.died_at_once ? budget.at_once + 1 : 0;
  if (decision.decision.died_at_once)
    budget.window.allow(decision.time);
  else if (is_restart_ && !progressed_)
    fruitless_ += 1;
  budget.without_progress += 1;
  is_restart_ = true;
  progressed_ = false;  // what begins after it
}

}  // namespace troupe::engine
