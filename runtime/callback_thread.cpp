// SPDX-License-Identifier: Apache-2.0
#include "runtime/callback_thread.hpp"

#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "runtime/base/make_thread.hpp"

namespace troupe {
namespace {

/// Calls `body`; gives the text of what it threw.
template <class Body>
std::optional<std::string> text_of_exception(Body&& body) {
  try {
    body();
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

engine::Failure failure_of(ErrorCode code, std::string text) {
  return {engine::FailureKind::fatal, code, -1, std::move(text), {}};
}

engine::Failure callback_failure(const char* hook, const std::string& text) {
  return failure_of(ErrorCode::callback_failed, fmt::format("a callback's {}() threw: {}", hook, text));
}

}  // namespace

CallbackThread::CallbackThread(Callbacks callbacks, std::shared_ptr<detail::Run> run, TrainingInfo info)
    : callbacks_(std::move(callbacks)), run_(std::move(run)) {
  thread_ = detail::make_thread("of the callbacks", [this, info = std::move(info)] { work(info); });
}

CallbackThread::~CallbackThread() {
  if (thread_.joinable()) thread_.join();
}

void CallbackThread::join() { thread_.join(); }

void CallbackThread::work(const TrainingInfo& info) {
  const auto started = start(info);
  const bool all = started == callbacks_.size();
  started_.set_value(all);
  if (all) consume();
  finish(started);
}

std::size_t CallbackThread::start(const TrainingInfo& info) {
  for (std::size_t i = 0; i < callbacks_.size(); ++i) {
    if (auto text = text_of_exception([&] { callbacks_[i]->start_training(info); })) {
      detail::RunResult result;
      result.outcome.status = engine::RunStatus::failed;
      result.outcome.failure = callback_failure("start_training", *text);
      run_->finish(std::move(result));
      return i;
    }
  }
  return callbacks_.size();
}

void CallbackThread::consume() {
  std::vector<Json> results;
  ResultInfo info;
  // Weak: a callback may keep its copy.
  info.stop = [weak = std::weak_ptr<detail::Run>(run_)] {
    if (auto run = weak.lock()) run->stop(engine::StopReason::asked);
  };
  for (;;) {
    bool more = false;
    if (auto text = text_of_exception([&] { more = run_->next_round(results, info); }))
      return run_->fail(failure_of(ErrorCode::internal, "a round of reports cannot be shown: " + *text));
    if (!more) return;
    auto text = text_of_exception([&] {
      for (auto& callback : callbacks_) callback->handle_result(results, info);
    });
    if (text) return run_->fail(callback_failure("handle_result", *text));
  }
}

void CallbackThread::finish(std::size_t started) {
  const auto status = run_->conclude().outcome.status;
  bool error = status == engine::RunStatus::failed || status == engine::RunStatus::interrupted;
  for (std::size_t i = 0; i < started; ++i)
    if (auto text = text_of_exception([&] { callbacks_[i]->finish_training(error); })) {
      run_->fail_at_end(callback_failure("finish_training", *text));
      error = true;
    }
}

}  // namespace troupe
