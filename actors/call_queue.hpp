// SPDX-License-Identifier: Apache-2.0
// Calls on workers on their way from the callers' threads to the WorkerGroup. It is woken once a burst, and by the
// caller itself: a hop through the Trainer would cost every call a wake-up more.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <troupe/call.hpp>
#include <troupe/error.hpp>

namespace troupe::local {

struct PendingCall {
  int rank = 0;
  detail::FunctionId function;
  std::string arguments;
  detail::CallDone done;

  void fail(ErrorCode code, const std::string& text) const {
    done({}, std::make_exception_ptr(Error(code, text, rank)));
  }
};

class CallQueue {
public:
  /// `wake` is called, on any thread, when the queue stops being empty.
  void open(std::function<void()> wake) {
    std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }

  void push(PendingCall call) {
    {
      std::lock_guard lock(mutex_);
      if (wake_) {
        calls_.push_back(std::move(call));
        if (calls_.size() == 1) wake_();
        return;
      }
    }
    end(call);
  }

  std::vector<PendingCall> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(calls_, {});
  }

  /// Calls that nobody took, and all later ones, fail.
  void close() {
    std::vector<PendingCall> left;
    {
      std::lock_guard lock(mutex_);
      wake_ = nullptr;
      left.swap(calls_);
    }
    for (const auto& call : left) end(call);
  }

private:
  static void end(const PendingCall& call) { call.fail(ErrorCode::invalid_state, "the trainer was shut down"); }

  std::mutex mutex_;
  std::function<void()> wake_;
  std::vector<PendingCall> calls_;
};

}  // namespace troupe::local
