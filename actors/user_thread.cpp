// SPDX-License-Identifier: Apache-2.0
#include "actors/user_thread.hpp"

#include <utility>

namespace troupe {

UserThread::UserThread() : thread_([queue = queue_] { work(queue); }) {}

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

void UserThread::post(std::function<void()> task) {
  {
    std::lock_guard lock(queue_->mutex);
    queue_->tasks.push_back(std::move(task));
  }
  queue_->changed.notify_one();
}

void UserThread::work(const std::shared_ptr<Queue>& queue) {
  std::unique_lock lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return queue->ending || !queue->tasks.empty(); });
    if (queue->tasks.empty()) return;
    auto task = std::move(queue->tasks.front());
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
