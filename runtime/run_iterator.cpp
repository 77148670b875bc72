// SPDX-License-Identifier: Apache-2.0
#include <troupe/run_iterator.hpp>

#include <utility>

#include <troupe/error.hpp>

#include "actors/run.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/own_process.hpp"
#include "runtime/run_errors.hpp"

namespace troupe {

RunIterator::RunIterator(std::shared_ptr<detail::Run> run) : run_(std::move(run)) { run_->consume_here(); }

RunIterator::RunIterator(RunIterator&& other) noexcept
    : run_(std::move(other.run_)), round_(std::move(other.round_)), results_(std::move(other.results_)) {
  if (run_) run_->consume_here();  // until another thread asks for a round
}

RunIterator& RunIterator::operator=(RunIterator&& other) noexcept {
  RunIterator old(std::move(*this));
  run_ = std::move(other.run_);
  round_ = std::move(other.round_);
  results_ = std::move(other.results_);
  return *this;
}

RunIterator::~RunIterator() {
  if (!run_) return;
  if (!detail::is_this_process(run_->made_in)) {
    detail::leave_behind(std::move(run_));
    return;
  }
  run_->stop(engine::StopReason::asked);
  // Workers are killed at their deadline. What outlasts it: checkpoints that are still written, and a function on a
  // thread of this program that never stops.
  if (!run_->wait_for(run_->spec.patience))
    log_warning("the iterator of a run was dropped, and {}; the trainer takes the next run when that has ended",
                run_->spec.can_end_at_once ? "its checkpoints are still being written"
                                           : "its function does not stop: the thread of it is left behind");
  run_->conclude_by_itself();
}

bool RunIterator::next() {
  detail::require_process(run_->made_in);
  ResultInfo info;
  if (run_->next_round(round_, info)) return true;
  conclude();
  return false;
}

/// What the ranks returned is opened once, at the end of the run: what lies in memory is there until the next one.
const RunResults& RunIterator::conclude() {
  const auto& result = run_->conclude();
  throw_if_failed(*run_, result);
  if (!results_) results_.emplace(result.results);
  return *results_;
}

bool RunIterator::is_finished() const { return run_->exhausted(); }

std::optional<RunResults> RunIterator::get_final_results(bool force) {
  detail::require_process(run_->made_in);
  if (!force && !is_finished()) {
    log_warning(
        "get_final_results() before the iterator is exhausted gives nothing; pass force = true to wait for the "
        "end of the run");
    return std::nullopt;
  }
  while (next()) {
  }
  return conclude();
}

RunResults RunIterator::get_returns() {
  if (!is_finished())
    throw Error(ErrorCode::invalid_state,
                "the run has not finished: take all rounds first, or get_final_results(true)");
  return *get_final_results();
}

}  // namespace troupe
