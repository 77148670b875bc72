// SPDX-License-Identifier: Apache-2.0
#include "actors/run.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/log.hpp"

namespace troupe::detail {
namespace {

/// Credit flows back in lumps of this many rounds while the consumer is busy.
constexpr std::uint32_t credit_lump = 128;

}  // namespace

RunResult failed_run(ErrorCode code, std::string text) {
  RunResult result;
  result.outcome.status = engine::RunStatus::failed;
  result.outcome.failure = engine::Failure{engine::FailureKind::fatal, code, -1, std::move(text), {}};
  return result;
}

void Run::attach(std::shared_ptr<RunControl> control) {
  std::lock_guard lock(mutex_);
  if (!result_) control_ = std::move(control);  // finish() has dropped what there was
}

std::shared_ptr<RunControl> Run::control() const {
  std::lock_guard lock(mutex_);
  return control_;
}

Run::Added Run::add_rounds(std::vector<Round> rounds, bool resumed) {
  Added added;
  {
    std::lock_guard lock(mutex_);
    auto first = rounds.begin();
    if (resumed)
      first = std::find_if(first, rounds.end(), [this](const Round& round) { return round.number > shown_; });
    added.dropped = static_cast<std::size_t>(first - rounds.begin());
    if (first == rounds.end()) return added;
    shown_ = rounds.back().number;
    view->round = shown_;
    added.is_new = shown_ > furthest_;
    furthest_ = std::max(furthest_, shown_);
    rounds_.insert(rounds_.end(), std::make_move_iterator(first), std::make_move_iterator(rounds.end()));
  }
  changed_.notify_all();
  return added;
}

void Run::finish(RunResult result) {
  std::shared_ptr<RunControl> dropped;
  bool abandoned = false;
  {
    std::lock_guard lock(mutex_);
    if (result_) return;
    result_ = std::move(result);
    dropped = std::move(control_);
    abandoned = concludes_by_itself_;
  }
  changed_.notify_all();
  if (abandoned) conclude_by_itself();
}

void Run::finish_unless_begun(const RunResult& result) {
  {
    std::lock_guard lock(mutex_);
    if (begun_ || result_) return;
    result_ = result;
  }
  changed_.notify_all();
}

bool Run::next_round(std::vector<Json>& results, ResultInfo& info) {
  consume_here();
  if (taken_.empty()) give_credit();
  {
    std::unique_lock lock(mutex_);
    if (taken_.empty()) {
      changed_.wait(lock, [this] { return result_ || !rounds_.empty(); });
      taken_.swap(rounds_);
    }
    if (out_of_time()) {
      taken_.clear();
      rounds_.clear();
    }
  }
  if (taken_.empty()) return false;
  const Round round = std::move(taken_.front());
  taken_.pop_front();
  if (round.generation != credit_generation_) give_credit();
  credit_generation_ = round.generation;
  credit_rounds_ += 1;
  if (credit_rounds_ >= credit_lump) give_credit();

  results.resize(round.reports.size());
  for (std::size_t rank = 0; rank < results.size(); ++rank) results[rank] = unpack(round.reports[rank]);
  info.attempt = round.attempt;
  info.round = round.number;
  info.world_size = static_cast<int>(results.size());
  return true;
}

void Run::give_credit() {
  const auto rounds = std::exchange(credit_rounds_, 0);
  if (rounds == 0) return;
  if (auto to = control()) to->consumed(credit_generation_, rounds);
}

void Run::stop(engine::StopReason reason, std::optional<engine::Failure> failure) {
  stop_asked_ = true;
  std::shared_ptr<RunControl> to;
  {
    std::lock_guard lock(mutex_);
    if (!begun_ && !result_) {
      if (!early_stop_) early_stop_ = StopRequest{reason, std::move(failure)};
      return;
    }
    if (reason == engine::StopReason::interrupted) note_interrupt();
    to = control_;
  }
  if (to) to->stop(reason, std::move(failure));
}

void Run::note_interrupt() {
  const auto now = std::chrono::steady_clock::now();
  show_until_ = show_until_ ? now : now + spec.shown_after_interrupt;
  if (result_ && !concluded_) interrupted_late_ = true;
}

bool Run::out_of_time() const { return show_until_ && std::chrono::steady_clock::now() >= *show_until_; }

void Run::fail(engine::Failure failure) {
  {
    std::lock_guard lock(mutex_);
    if (!consumer_failure_) consumer_failure_ = failure;
  }
  stop(engine::StopReason::failure, std::move(failure));
}

std::optional<StopRequest> Run::begin() {
  std::lock_guard lock(mutex_);
  begun_ = true;
  return std::exchange(early_stop_, std::nullopt);
}

bool Run::finished() const {
  std::lock_guard lock(mutex_);
  return result_.has_value();
}

bool Run::exhausted() const {
  std::lock_guard lock(mutex_);
  return result_ && rounds_.empty() && taken_.empty();
}

const RunResult& Run::conclude() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return result_.has_value(); });
  auto active = std::move(while_active);
  const bool first = !std::exchange(concluded_, true);
  auto& outcome = result_->outcome;
  if (first && (outcome.status == engine::RunStatus::succeeded || outcome.status == engine::RunStatus::stopped)) {
    if (consumer_failure_) {
      outcome.status = engine::RunStatus::failed;
      outcome.failure = std::move(consumer_failure_);
    } else if (interrupted_late_) {
      outcome.status = engine::RunStatus::interrupted;
    }
  }
  // Not under the lock: the end of `active` waits for a thread that may be in stop().
  lock.unlock();
  active.reset();
  if (first) spec.on_end(*result_);
  return *result_;
}

void Run::conclude_by_itself() {
  {
    std::lock_guard lock(mutex_);
    concludes_by_itself_ = true;
    if (!result_) return;
  }
  try {
    conclude();
  } catch (const std::exception& error) {
    log_error("the end of a run could not be written: {}", error.what());
  }
}

void Run::fail_at_end(engine::Failure failure) {
  {
    std::lock_guard lock(mutex_);
    auto& outcome = result_->outcome;
    if (outcome.status == engine::RunStatus::failed || outcome.status == engine::RunStatus::interrupted) return;
    outcome.status = engine::RunStatus::failed;
    outcome.failure = std::move(failure);
  }
  spec.on_end(*result_);
}

bool Run::wait_for(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [this] { return result_.has_value(); });
}

}  // namespace troupe::detail
