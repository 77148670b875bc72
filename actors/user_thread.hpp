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

  enum class When {
    after_others,  ///< when the tasks before it have ended
    even_inside,   ///< also while a task waits in serve()
  };
  void post(std::function<void()> task, When when = When::after_others);

private:
  struct Task {
    std::function<void()> action;
    When when;
  };
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    bool busy = false;
    bool ending = false;
  };

public:
  /// Lets a task that waits do tasks behind it that were posted for that.
  class Server {
  public:
    explicit Server(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}
    /// Called by a task: does such tasks until `done`, which is asked again after each of them and after poke().
    void serve(const std::function<bool()>& done) const;
    void poke() const;

  private:
    std::shared_ptr<Queue> queue_;
  };
  Server server() const { return Server(queue_); }

private:
  static void work(const std::shared_ptr<Queue>& queue);

  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::thread thread_;
};

}  // namespace troupe
