// SPDX-License-Identifier: Apache-2.0
// Stateful workers: objects that live on the workers, and calls on them. Calls are lambdas without captures that take
// the object by reference and arguments by value; arguments and results travel as JSON or in cereal form.
#pragma once

#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <troupe/call.hpp>

namespace troupe {

/// One worker of a group.
class WorkerHandle {
public:
  WorkerHandle(std::shared_ptr<detail::CallTarget> target, int rank) : target_(std::move(target)), rank_(rank) {}

  int rank() const { return rank_; }

  /// Starts a call and returns at once. The future throws user_code with the rank when the call threw, worker_lost
  /// when the worker died meanwhile.
  template <class F, class... Args>
  std::future<detail::CallResult<F>> submit(F, Args&&... args) const {
    // Deferred: the result is decoded on the thread that asks for it. So wait_for() tells nothing; get() waits.
    return std::async(std::launch::deferred,
                      [target = target_, bytes = send<F>(std::forward<Args>(args)...)]() mutable {
                        if (!is_ready(bytes)) target->check_may_wait();
                        return decode<F>(bytes);
                      });
  }

  /// Calls and waits. The wait spins for a moment before it sleeps: most answers are there by then, and waking a
  /// sleeping thread on an idle machine costs more than the call. It yields: threads that bring the answer may be
  /// waiting for this very core.
  template <class F, class... Args>
  detail::CallResult<F> execute(F, Args&&... args) const {
    target_->check_may_wait();
    auto bytes = send<F>(std::forward<Args>(args)...);
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(500);
    while (!is_ready(bytes) && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return decode<F>(bytes);
  }

private:
  static bool is_ready(const std::future<std::string>& bytes) {
    return bytes.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  template <class F, class... Args>
  std::future<std::string> send(Args&&... args) const {
    auto promise = std::make_shared<std::promise<std::string>>();
    auto bytes = promise->get_future();
    target_->call(rank_, detail::call_id<F>(), detail::encode_arguments<F>(std::forward<Args>(args)...),
                  [promise](std::string result, std::exception_ptr error) {
                    if (error)
                      promise->set_exception(std::move(error));
                    else
                      promise->set_value(std::move(result));
                  });
    return bytes;
  }

  template <class F>
  static detail::CallResult<F> decode(std::future<std::string>& bytes) {
    if constexpr (std::is_void_v<detail::CallResult<F>>)
      bytes.get();
    else
      return detail::Codec<detail::CallResult<F>>::decode(bytes.get());
  }

  std::shared_ptr<detail::CallTarget> target_;
  int rank_;
};

/// All workers of a started trainer, indexable by rank.
class WorkerGroup {
public:
  explicit WorkerGroup(std::shared_ptr<detail::CallTarget> target) : target_(std::move(target)) {}

  std::size_t size() const { return static_cast<std::size_t>(target_->worker_count()); }
  /// Throws invalid_argument for a rank that is not there.
  WorkerHandle operator[](int rank) const;

  /// Calls on all workers at once and waits for all: the results in rank order (nothing for void). The exception of
  /// the lowest failing rank is thrown after all have answered.
  template <class F, class... Args>
  auto execute(F function, const Args&... args) const {
    using Value = detail::CallResult<F>;
    target_->check_may_wait();
    std::vector<std::future<Value>> pending;
    pending.reserve(size());
    for (std::size_t rank = 0; rank < size(); ++rank)
      pending.push_back((*this)[static_cast<int>(rank)].submit(function, args...));
    std::exception_ptr first_error;
    std::vector<std::conditional_t<std::is_void_v<Value>, char, Value>> results;
    for (auto& one : pending) {
      try {
        if constexpr (std::is_void_v<Value>)
          one.get();
        else
          results.push_back(one.get());
      } catch (...) {
        if (!first_error) first_error = std::current_exception();
      }
    }
    if (first_error) std::rethrow_exception(first_error);
    if constexpr (!std::is_void_v<Value>) return results;
  }

  /// Calls on rank 0.
  template <class F, class... Args>
  auto execute_single(F function, Args&&... args) const {
    return (*this)[0].execute(function, std::forward<Args>(args)...);
  }

  /// Ends the workers; after `patience` they are killed.
  void shutdown(std::chrono::milliseconds patience = std::chrono::seconds(5)) { target_->shutdown(patience); }

private:
  std::shared_ptr<detail::CallTarget> target_;
};

}  // namespace troupe
