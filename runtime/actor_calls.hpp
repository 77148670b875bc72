// SPDX-License-Identifier: Apache-2.0
// Calls on the workers of a started trainer.
#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/worker_group.hpp>

#include "actors/protocols.hpp"
#include "actors/run.hpp"
#include "runtime/base/own_process.hpp"
#include "runtime/session/session.hpp"

namespace troupe::detail {

/// Handles that users keep after shutdown() answer with an error.
class ActorCallTarget : public CallTarget {
public:
  ActorCallTarget(std::shared_ptr<const local::GroupView> view, std::shared_ptr<local::CallQueue> queue,
                  std::function<void(std::chrono::milliseconds)> shut_down)
      : view_(std::move(view)), queue_(std::move(queue)), shut_down_(std::move(shut_down)) {}

  /// Calls wait for the end of that run from now on.
  void run_begins(const std::shared_ptr<Run>& run) {
    std::optional<Error> why;
    {
      std::lock_guard lock(mutex_);
      run_ = run;
      why = trainer_ended_;
    }
    if (why) run->finish(failed_run(why->code(), why->what()));
  }

  /// Nobody carries out this run, or a later one.
  void trainer_ended(const Error& why) {
    std::shared_ptr<Run> run;
    {
      std::lock_guard lock(mutex_);
      trainer_ended_ = why;
      run = run_.lock();
    }
    if (run) run->finish(failed_run(why.code(), why.what()));
  }

  int worker_count() const override { return static_cast<int>(view_->rows().size()); }

  void call(int rank, FunctionId function, std::string arguments, CallDone done) override {
    local::PendingCall call{rank, std::move(function), std::move(arguments), std::move(done)};
    if (call.arguments.size() > max_payload_bytes)
      return call.fail(ErrorCode::too_large, fmt::format("arguments of {} bytes are above the limit of {}",
                                                         call.arguments.size(), max_payload_bytes));
    require_process(made_in_);
    queue_->push(std::move(call));
  }

  void check_may_wait() const override {
    std::shared_ptr<Run> run;
    {
      std::lock_guard lock(mutex_);
      run = run_.lock();
    }
    if (run && run->waits_for_this_thread())
      throw Error(ErrorCode::invalid_state,
                  "this thread takes the rounds of the active run (or has had its iterator, and no other thread has "
                  "taken a round yet), and workers answer calls when it has ended: both would wait for each other. "
                  "Call before or after the run, or keep the future of submit() until then");
  }

  void shutdown(std::chrono::milliseconds patience) override {
    std::function<void(std::chrono::milliseconds)> shut_down;
    {
      std::lock_guard lock(mutex_);
      shut_down = shut_down_;
    }
    if (shut_down) shut_down(patience);
  }

  void close() {
    queue_->close();
    std::lock_guard lock(mutex_);
    shut_down_ = nullptr;
  }

private:
  const pid_t made_in_ = ::getpid();
  const std::shared_ptr<const local::GroupView> view_;
  const std::shared_ptr<local::CallQueue> queue_;
  mutable std::mutex mutex_;
  std::weak_ptr<Run> run_;
  std::optional<Error> trainer_ended_;
  std::function<void(std::chrono::milliseconds)> shut_down_;
};

}  // namespace troupe::detail
