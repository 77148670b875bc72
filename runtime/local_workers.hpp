// SPDX-License-Identifier: Apache-2.0
// Local mode: no workers at all. Functions and calls run in the caller's thread, with the same API.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>

#include <troupe/worker_group.hpp>

#include "actors/run.hpp"
#include "actors/user_code.hpp"
#include "runtime/engine/failure_policy.hpp"

namespace troupe {

class LocalWorkers : public detail::CallTarget {
public:
  /// Throws what the hook, backend or object throws. `shut_down` ends the trainer that these belong to.
  LocalWorkers(const UserSetup& setup, std::function<void(std::chrono::milliseconds)> shut_down);
  ~LocalWorkers() override;

  /// A run begins on some thread: no calls until it has ended.
  void reserve() { running_ = true; }
  /// Runs the function in this thread until the run has ended.
  void run(const std::shared_ptr<detail::Run>& run, const engine::RetryLimits& limits);

  int worker_count() const override { return 1; }
  void call(int rank, detail::FunctionId function, std::string arguments, detail::CallDone done) override;
  void shutdown(std::chrono::milliseconds patience) override;
  /// Its end is near: shutdown() does nothing from now on.
  void forget_trainer();
  /// Ends the object and the hook's work; calls fail from now on.
  void end();

private:
  void end_run(detail::Run& run, detail::RunResult result);
  void run_attempts(const std::shared_ptr<detail::Run>& run, const engine::RetryLimits& limits);

  std::mutex shut_down_mutex_;
  std::function<void(std::chrono::milliseconds)> shut_down_;
  std::shared_ptr<UserCode> code_ = std::make_shared<UserCode>();
  std::atomic<bool> running_{false};
  UserOutcome last_;
};

}  // namespace troupe
