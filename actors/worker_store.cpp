// SPDX-License-Identifier: Apache-2.0
#include "actors/worker_store.hpp"

#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

namespace troupe {
namespace {

using engine::StoreOperation;

/// Addresses and identifiers go through the store, not data.
constexpr std::size_t max_value_bytes = wire::max_message_bytes / 2;

}  // namespace

wire::StoreAnswer WorkerStore::ask(StoreOperation operation, std::vector<std::string> keys, std::string value,
                                   std::int64_t amount, Timeout timeout) {
  if (value.size() > max_value_bytes)
    throw Error(ErrorCode::too_large,
                fmt::format("a store value of {} bytes is above the limit of {}: the store is for "
                            "addresses and identifiers",
                            value.size(), max_value_bytes));
  const auto names = fmt::format("{}", fmt::join(keys, ", "));
  std::unique_lock lock(mutex_);
  const auto id = next_id_++;
  if (aborted_) throw GroupLost("the group of this worker is gone");
  outgoing_.push_back(
      {token_, id, static_cast<std::uint8_t>(operation), std::move(keys), std::move(value), amount, timeout.count()});
  pending_[id];
  lock.unlock();
  wake_();
  lock.lock();
  // The store has the deadline; this one is for a store that is gone.
  const bool answered =
      changed_.wait_for(lock, timeout + std::chrono::seconds(10), [&] { return aborted_ || pending_[id].has_value(); });
  auto answer = std::move(pending_[id]);
  pending_.erase(id);
  if (!answer && aborted_) throw GroupLost("the group of this worker is gone");
  if (!answered || !answer) throw Error(ErrorCode::deadline, fmt::format("the store did not answer ({})", names));
  if (answer->failed != 0)
    throw Error(ErrorCode::deadline, fmt::format("nobody set {} within {} ms", answer->value, timeout.count()));
  return std::move(*answer);
}

void WorkerStore::set(const std::string& key, const std::string& value) { ask(StoreOperation::set, {key}, value); }
std::string WorkerStore::get(const std::string& key, Timeout timeout) {
  return ask(StoreOperation::get, {key}, {}, 0, timeout).value;
}
std::int64_t WorkerStore::add(const std::string& key, std::int64_t amount) {
  return ask(StoreOperation::add, {key}, {}, amount).number;
}
bool WorkerStore::check(const std::vector<std::string>& keys) { return ask(StoreOperation::check, keys).number != 0; }
bool WorkerStore::erase(const std::string& key) { return ask(StoreOperation::erase, {key}).number != 0; }
std::int64_t WorkerStore::count() { return ask(StoreOperation::count, {}).number; }
void WorkerStore::wait(const std::vector<std::string>& keys, Timeout timeout) {
  if (!keys.empty()) ask(StoreOperation::wait, keys, {}, 0, timeout);
}

std::vector<wire::StoreRequest> WorkerStore::take_requests() {
  std::lock_guard lock(mutex_);
  return std::exchange(outgoing_, {});
}

void WorkerStore::answer(const wire::StoreAnswer& answer) {
  {
    std::lock_guard lock(mutex_);
    if (auto found = pending_.find(answer.id); found != pending_.end()) found->second = answer;
  }
  changed_.notify_all();
}

void WorkerStore::abort() {
  {
    std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
}

void WorkerStore::reset() {
  std::lock_guard lock(mutex_);
  aborted_ = false;
}

}  // namespace troupe
