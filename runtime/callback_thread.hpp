// SPDX-License-Identifier: Apache-2.0
// Calls a run's callbacks, in order, on a thread of their own, so that they can neither block actors nor the user's
// thread. It is the run's consumer.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <troupe/callback.hpp>

#include "actors/run.hpp"

namespace troupe {

class CallbackThread {
public:
  using Callbacks = std::vector<std::shared_ptr<TrainingCallback>>;

  CallbackThread(Callbacks callbacks, std::shared_ptr<detail::Run> run, TrainingInfo info);
  ~CallbackThread();

  /// Waits until all callbacks have had start_training(). False if one threw: the run has ended then.
  bool wait_started() { return started_.get_future().get(); }

  /// Waits until the run has ended and all callbacks have had finish_training(). One that throws there fails the run.
  void join();

private:
  void work(const TrainingInfo& info);
  std::size_t start(const TrainingInfo& info);
  void consume();
  void finish(std::size_t started);

  Callbacks callbacks_;
  std::shared_ptr<detail::Run> run_;
  std::promise<bool> started_;
  std::thread thread_;
};

}  // namespace troupe
