// SPDX-License-Identifier: Apache-2.0
// Random schedules of a run, against a model that knows only what users are promised.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <tuple>

#include "runtime/engine/run_machine.hpp"

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

/// What the promises allow, told from the events alone.
class Model {
public:
  explicit Model(RetryLimits limits) : limits_(limits) {}

  void begun(Time now) {
    DOCTEST_REQUIRE_FALSE(active);
    DOCTEST_REQUIRE_FALSE(over);
    DOCTEST_REQUIRE(now >= not_before_);
    active = true;
    attempts += 1;
    granted.reset();
    begin_stretch(now);
  }
  /// The ranks go on in place.
  void went_on(Time now) {
    DOCTEST_REQUIRE(active);
    DOCTEST_REQUIRE(now >= not_before_);
  }
  void round(bool fresh) {
    worked_ = true;
    if (!fresh) return;
    fresh_ = true;
    fruitless_ = 0;
    if (std::get<0>(last_place_) <= 0 && !std::get<1>(last_place_)) last_place_ = {-2, {}, ""};
    for (int user : {0, 1}) {
      early_deaths_[user].clear();
      early_in_a_row_[user] = 0;
      pauses_[user] = 0;
    }
  }

  /// Whether a failure now may be followed by another attempt, or a damage by going on in place, as the documentation
  /// has it.
  bool may_retry(const Failure& failure, Time now, bool in_place) {
    const bool may = may_retry(failure, now);
    if (in_place && may) {
      granted = failure;
      begin_stretch(std::max(now, not_before_));
    }
    return may;
  }
  /// What was granted in place needs no second decision.
  bool is_granted(const Failure& failure) const {
    return granted && (failure.kind == FailureKind::worker_lost ||
                       (failure.kind == granted->kind && failure.text == granted->text));
  }

  bool active = false;
  bool over = false;
  int attempts = 0;
  std::optional<Failure> granted;

private:
  void begin_stretch(Time now) {
    begun_ = now;
    worked_ = fresh_ = false;
  }

  bool may_retry(const Failure& failure, Time now) {
    not_before_ = now;
    if (failure.kind == FailureKind::fatal) return false;
    if (failure.kind == FailureKind::preempted) return true;  // fewer than its window in these schedules
    const bool user = failure.kind == FailureKind::user_error;
    if (user && !limits_.retry_user_errors) return false;
    if (limits_.max_retries >= 0 && retries_[user] >= limits_.max_retries) return false;
    const auto place = std::tuple(failure.round, failure.step, failure.text);
    if (user && std::exchange(last_place_, place) == place) return false;
    const bool early = !worked_ && !fresh_ && now - begun_ < limits_.window / (2 * limits_.window_restarts);
    if (early) {
      auto& deaths = early_deaths_[user];
      std::erase_if(deaths, [&](Time then) { return now - then >= limits_.window; });
      if (static_cast<int>(deaths.size()) == limits_.window_restarts) return false;
      deaths.push_back(now);
      if (++early_in_a_row_[user] > limits_.window_restarts) return false;
    } else if (early_in_a_row_[user] = 0; retried_ && !fresh_ && ++fruitless_ >= limits_.fruitless_restarts) {
      return false;
    }
    retries_[user] += 1;
    retried_ = true;
    auto& pauses = pauses_[user];
    if (pauses > 0) not_before_ += std::min<Duration>(10s, 100ms * (1 << std::min(pauses - 1, 20)));
    pauses += 1;
    return true;
  }

  RetryLimits limits_;
  // Of lost workers, and of user errors.
  int retries_[2] = {0, 0};
  int pauses_[2] = {0, 0};
  std::vector<Time> early_deaths_[2];
  int early_in_a_row_[2] = {0, 0};
  bool retried_ = false;
  int fruitless_ = 0;
  bool worked_ = false;
  bool fresh_ = false;
  Time begun_{};
  Time not_before_{};
  std::tuple<std::int64_t, std::optional<std::int64_t>, std::string> last_place_{-2, {}, ""};
};

class Schedule {
public:
  Schedule(unsigned seed, RetryLimits limits) : random_(seed), machine_(limits), model_(limits) {}

  void play() {
    perform(machine_.begin(now_));
    for (int i = 0; i < 200 && !model_.over; ++i) one_event();
    if (!model_.over) perform(machine_.stop(StopReason::interrupted));
    if (model_.active) end_attempt(std::nullopt);
    DOCTEST_REQUIRE(model_.over);
    DOCTEST_REQUIRE(machine_.damaged(failure(), now_).empty());
    DOCTEST_REQUIRE(machine_.finished());
    DOCTEST_REQUIRE(machine_.attempt_ended(std::nullopt, now_).empty());
    DOCTEST_REQUIRE(machine_.stop(StopReason::asked).empty());
    DOCTEST_REQUIRE(machine_.tick(now_ + 1h).empty());
  }

private:
  int pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  void one_event() {
    now_ += std::chrono::milliseconds(pick(4) == 0 ? pick(30'000) : pick(300));
    switch (pick(12)) {
      case 0:
      case 1:
        if (model_.active) round(pick(2) == 0);
        return;
      case 2:
        if (pick(40) == 0) return stop();
        return;
      case 3:
        if (model_.active && pick(20) == 0) return end_attempt(std::nullopt);
        if (model_.active && !refused_ && pick(2) == 0) go_on_in_place();
        return;
      case 4:
      case 5:
      case 6:
      case 7:
        if (model_.active && !refused_) return damage(failure());
        return;
      case 8:
        if (model_.active) return pass_pause();
        return;
      default:
        if (model_.active) return end_attempt(failure());
        DOCTEST_REQUIRE(machine_.deadline());  // waiting: nothing else may hold it
        now_ = std::max(now_, *machine_.deadline());
        perform(machine_.tick(now_));
    }
  }

  void round(bool fresh) {
    machine_.worked();
    if (fresh) machine_.progress();
    model_.round(fresh);
  }

  /// Ranks were lost, or threw, and the others ask whether they may go on in place.
  void damage(const Failure& failure) {
    const bool may = !stopped_ && model_.may_retry(failure, now_, true);
    const auto before = machine_.decisions().size();
    const auto actions = machine_.damaged(failure, now_);
    DOCTEST_REQUIRE(machine_.decisions().size() == before + (stopped_ ? 0 : 1));
    refused_ = !actions.empty() && std::holds_alternative<FailAttempt>(actions.front());
    DOCTEST_REQUIRE(refused_ == (!may && !stopped_));
    if (!stopped_) {
      DOCTEST_REQUIRE(machine_.decisions().back().in_place);
      DOCTEST_REQUIRE(machine_.decisions().back().decision.retry == may);
    }
    // Granted: now, or after a pause.
    if (may) DOCTEST_REQUIRE(actions.empty() == machine_.deadline().has_value());
    perform(actions);
  }

  void go_on_in_place() {
    machine_.went_on();
    model_.granted.reset();
  }

  void pass_pause() {
    if (machine_.deadline()) now_ = std::max(now_, *machine_.deadline());
    perform(machine_.tick(now_));
  }

  void stop() {
    const auto reason = static_cast<StopReason>(pick(3));
    std::optional<Failure> why;
    if (reason == StopReason::failure) why = Failure{FailureKind::fatal, troupe::ErrorCode::callback_failed, -1, "x"};
    stopped_ = true;
    perform(machine_.stop(reason, why));
  }

  Failure failure() {
    switch (pick(20)) {
      case 0:
        return {FailureKind::fatal, troupe::ErrorCode::refused, 0, "fatal"};
      case 1:
      case 2:
        return {FailureKind::preempted, troupe::ErrorCode::worker_lost, pick(4), "taken away"};
      case 3:
      case 4:
      case 5:
        return threw();
      default:
        return {FailureKind::worker_lost, troupe::ErrorCode::worker_lost, pick(4), "killed"};
    }
  }

  /// At a round, or after a step of a function that goes on in place.
  Failure threw() {
    Failure failure{FailureKind::user_error, troupe::ErrorCode::user_code, pick(4), pick(2) == 0 ? "a" : "b"};
    if (pick(2) == 0)
      failure.round = pick(4);
    else
      failure.step = pick(4) - 1;
    return failure;
  }

  void end_attempt(std::optional<Failure> failure) {
    const bool told = failure && !stopped_ && !refused_;
    const bool retry = told && (model_.is_granted(*failure) || model_.may_retry(*failure, now_, false));
    model_.active = false;
    const auto before = machine_.decisions().size();
    const auto actions = machine_.attempt_ended(failure, now_);
    const auto* end = actions.empty() ? nullptr : std::get_if<FinishRun>(&actions.front());
    DOCTEST_REQUIRE(retry == (end == nullptr));
    // Every failure that nobody asked for is followed by exactly one decision, which says what happened.
    DOCTEST_REQUIRE(machine_.decisions().size() == before + (told ? 1 : 0));
    if (told) DOCTEST_REQUIRE(machine_.decisions().back().decision.retry == retry);
    if (end && !failure && !stopped_ && !refused_) DOCTEST_REQUIRE(end->outcome.status == RunStatus::succeeded);
    refused_ = false;
    if (end && failure && !stopped_) DOCTEST_REQUIRE_FALSE(end->outcome.decision.empty());
    perform(actions);
  }

  void perform(const RunActions& actions) {
    for (const auto& action : actions) {
      if (const auto* begin = std::get_if<BeginAttempt>(&action)) {
        model_.begun(now_);
        DOCTEST_REQUIRE(begin->attempt == model_.attempts);
      }
      if (const auto* end = std::get_if<FinishRun>(&action)) {
        DOCTEST_REQUIRE_FALSE(model_.active);
        DOCTEST_REQUIRE(end->outcome.attempts == model_.attempts);
        DOCTEST_REQUIRE(end->outcome.decisions.size() == machine_.decisions().size());
        model_.over = true;
      }
      if (std::holds_alternative<StopAttempt>(action)) DOCTEST_REQUIRE(model_.active);
      if (std::holds_alternative<GoOn>(action)) model_.went_on(now_);
    }
  }

  std::mt19937 random_;
  RunMachine machine_;
  Model model_;
  Time now_ = Time{} + 1h;
  bool stopped_ = false;
  bool refused_ = false;  // the damage: the attempt's end is to follow
};

}  // namespace

DOCTEST_TEST_CASE("random schedules of a run keep to the model") {
  const char* given = std::getenv("TROUPE_SEED");
  const unsigned first = given ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
  for (unsigned i = 0; i < 3000; ++i) {
    const auto seed = first + i;
    DOCTEST_CAPTURE(seed);  // play it again with TROUPE_SEED
    const RetryLimits limits{.max_retries = static_cast<int>(seed % 7) - 1, .retry_user_errors = seed % 2 == 0};
    Schedule(seed, limits).play();
  }
}
