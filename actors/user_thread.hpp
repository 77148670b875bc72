// SPDX-License-Identifier: Apache-2.0
// The thread of a rank that runs user code: hooks, train functions and calls, one after the other. CAF's threads never
// do.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace troupe {

class UserThread {
public:
  UserThread();
  /// Ends after the tasks it has; waits for a thread that has none, leaves a busy one to itself (a task that never
  /// returns must not hang its owner; what it needs is shared with it).
  ~UserThread();
  UserThread(const UserThread&) = delete;
  UserThread& operator=(const UserThread&) = delete;

  void post(std::function<void()> task);

private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool busy = false;
    bool ending = false;
  };
  static void work(const std::shared_ptr<Queue>& queue);

  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::thread thread_;
};

}  // namespace troupe
