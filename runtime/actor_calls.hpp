// SPDX-License-Identifier: Apache-2.0
// Calls on the workers of a started trainer.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/worker_group.hpp>

#include "actors/protocols.hpp"

namespace troupe::detail {

/// Handles that users keep after shutdown() answer with an error: close() drops the actor.
class ActorCallTarget : public CallTarget {
public:
  ActorCallTarget(std::shared_ptr<const local::GroupView> view, TrainerActor trainer,
                  std::shared_ptr<local::CallQueue> queue, std::function<void(std::chrono::milliseconds)> shut_down)
      : view_(std::move(view)),
        trainer_(std::move(trainer)),
        queue_(std::move(queue)),
        shut_down_(std::move(shut_down)) {}

  int worker_count() const override { return static_cast<int>(view_->rows().size()); }

  void call(int rank, FunctionId function, std::string arguments, CallDone done) override {
    if (arguments.size() > max_payload_bytes)
      return fail(done, ErrorCode::too_large, rank,
                  fmt::format("arguments of {} bytes are above the limit of {}", arguments.size(), max_payload_bytes));
    std::lock_guard lock(mutex_);
    if (!trainer_) return fail(done, ErrorCode::invalid_state, rank, "the trainer was shut down");
    if (queue_->push({rank, std::move(function), std::move(arguments), std::move(done)}))
      compat::post(trainer_, atom::wake_v);
  }

  void shutdown(std::chrono::milliseconds patience) override {
    std::function<void(std::chrono::milliseconds)> shut_down;
    {
      std::lock_guard lock(mutex_);
      if (!trainer_) return;
      shut_down = shut_down_;
    }
    shut_down(patience);
  }

  void close() {
    std::lock_guard lock(mutex_);
    trainer_ = nullptr;
    shut_down_ = nullptr;
  }

private:
  static void fail(const CallDone& done, ErrorCode code, int rank, const std::string& text) {
    done({}, std::make_exception_ptr(Error(code, text, rank)));
  }

  const std::shared_ptr<const local::GroupView> view_;
  std::mutex mutex_;
  TrainerActor trainer_;
  std::shared_ptr<local::CallQueue> queue_;
  std::function<void(std::chrono::milliseconds)> shut_down_;
};

}  // namespace troupe::detail
