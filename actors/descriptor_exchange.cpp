// SPDX-License-Identifier: Apache-2.0
#include "actors/descriptor_exchange.hpp"

#include <fcntl.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include <troupe/error.hpp>

#include "actors/node/descriptor_channel.hpp"

namespace troupe {

void ProcessDescriptors::send(int to_rank, int descriptor) { node::send_descriptor(channel_, to_rank, descriptor); }

int ProcessDescriptors::receive(std::chrono::milliseconds timeout) {
  auto received = node::receive_descriptor(channel_, timeout);
  return received ? received->fd.release() : -1;
}

/// Descriptors on their way, by receiver.
struct ThreadDescriptors::Table {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::deque<node::UniqueFd>> waiting;
};

std::shared_ptr<DescriptorExchange> ThreadDescriptors::of(std::uint64_t group, int rank) {
  static std::mutex mutex;
  static std::map<std::uint64_t, std::weak_ptr<Table>> tables;
  std::lock_guard lock(mutex);
  std::erase_if(tables, [](const auto& entry) { return entry.second.expired(); });
  auto table = tables[group].lock();
  if (!table) tables[group] = table = std::make_shared<Table>();
  return std::make_shared<ThreadDescriptors>(std::move(table), rank);
}

void ThreadDescriptors::send(int to_rank, int descriptor) {
  node::UniqueFd copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
  if (copy.get() < 0) throw Error(ErrorCode::io, "no descriptors are left: raise `ulimit -n`");
  {
    std::lock_guard lock(table_->mutex);
    table_->waiting[to_rank].push_back(std::move(copy));
  }
  table_->changed.notify_all();
}

int ThreadDescriptors::receive(std::chrono::milliseconds timeout) {
  std::unique_lock lock(table_->mutex);
  auto& mine = table_->waiting[rank_];
  if (!table_->changed.wait_for(lock, timeout, [&] { return !mine.empty(); })) return -1;
  const int descriptor = mine.front().release();
  mine.pop_front();
  return descriptor;
}

}  // namespace troupe
