// SPDX-License-Identifier: Apache-2.0
#include "actors/user_thread.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/make_thread.hpp"
#include "runtime/base/thread_turns.hpp"

namespace troupe {

UserThread::UserThread() : thread_(detail::make_thread("of a train function", [queue = queue_] { work(queue); })) {}

UserThread::~UserThread() {
  bool idle = false;
  {
    std::lock_guard lock(queue_->mutex);
    queue_->ending = true;
    idle = !queue_->busy && queue_->tasks.empty();
  }
  queue_->changed.notify_all();
  if (idle)
    thread_.join();
  else
    thread_.detach();
}

void UserThread::post(std::function<void()> task, When when) {
  {
    std::lock_guard lock(queue_->mutex);
    queue_->tasks.push_back({std::move(task), when});
  }
  queue_->changed.notify_all();
}

void UserThread::Server::serve(const std::function<bool()>& done) const {
  auto& tasks = queue_->tasks;
  const auto next = [&] {
    return std::find_if(tasks.begin(), tasks.end(), [](const Task& one) { return one.when == When::even_inside; });
  };
  std::unique_lock lock(queue_->mutex);
  for (;;) {
    queue_->changed.wait(lock, [&] { return done() || next() != tasks.end(); });
    if (done()) return;
    auto task = std::move(next()->action);
    tasks.erase(next());
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

void UserThread::Server::poke() const {
  {
    std::lock_guard lock(queue_->mutex);
  }  // whoever looks right now will be waiting when it is notified
  queue_->changed.notify_all();
}

void UserThread::work(const std::shared_ptr<Queue>& queue) {
  detail::take_usual_turns();  // whatever made it: this one computes
  std::unique_lock lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return queue->ending || !queue->tasks.empty(); });
    if (queue->tasks.empty()) return;
    auto task = std::move(queue->tasks.front().action);
    queue->tasks.pop_front();
    queue->busy = true;
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes before the thread counts as idle
    lock.lock();
    queue->busy = false;
  }
}

}  // namespace troupe
