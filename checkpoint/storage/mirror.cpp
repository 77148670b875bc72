// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/mirror.hpp"

#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "checkpoint/manifest.hpp"
#include "checkpoint/storage/transfer.hpp"

namespace troupe::storage {

CheckpointMirror::CheckpointMirror(std::unique_ptr<Storage> storage, std::string prefix,
                                   std::function<void(const std::string&)> on_error)
    : storage_(std::move(storage)),
      prefix_(std::move(prefix)),
      on_error_(std::move(on_error)),
      thread_([this] { run(); }) {}

CheckpointMirror::~CheckpointMirror() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointMirror::want(Wanted wanted) {
  {
    std::lock_guard lock(mutex_);
    next_ = std::move(wanted);
  }
  changed_.notify_all();
}

void CheckpointMirror::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !next_ && !is_busy_; });
}

void CheckpointMirror::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return next_ || is_ending_; });
    if (!next_) return;
    const auto wanted = std::exchange(next_, std::nullopt).value();
    is_busy_ = true;
    lock.unlock();
    reconcile(wanted);
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

/// The newest first: it is the one that somebody needs. What goes, goes when what stays is there.
void CheckpointMirror::reconcile(const Wanted& wanted) {
  bool is_whole = true;
  for (auto place = wanted.rbegin(); place != wanted.rend(); ++place) {
    const auto& [name, folder] = *place;
    if (stored_.contains(name)) continue;
    try {
      // One that an earlier program brought there is whole, and not ours to remove.
      if (storage_->head(key_of(name) + "/" + std::string(detail::manifest_name))) continue;
      upload_checkpoint(folder, *storage_, key_of(name));
      stored_.insert(name);
    } catch (const std::exception& error) {
      // One that was removed or moved here meanwhile: the next wish says which, and what was copied of it goes.
      if (!std::filesystem::exists(folder / detail::manifest_name)) {
        remove(name);
        continue;
      }
      is_whole = false;
      on_error_(fmt::format("{} is not in {}: {}", name, storage_->name(), error.what()));
    }
  }
  if (!is_whole) return;
  for (auto stored = stored_.begin(); stored != stored_.end();) {
    if (wanted.contains(*stored)) {
      ++stored;
      continue;
    }
    stored = remove(*stored) ? stored_.erase(stored) : std::next(stored);
  }
}

bool CheckpointMirror::remove(const std::string& name) {
  try {
    remove_checkpoint(*storage_, key_of(name));
    return true;
  } catch (const std::exception& error) {
    on_error_(fmt::format("{} is still in {}: {}", name, storage_->name(), error.what()));
    return false;
  }
}

std::optional<std::filesystem::path> CheckpointMirror::fetch_latest(const std::filesystem::path& parent) {
  const auto there = list_checkpoints(*storage_, prefix_ + "/");
  if (there.empty()) return std::nullopt;
  const auto& key = there.back().key;  // six digits: the last name is the newest
  const auto folder = parent / key.substr(prefix_.size() + 1);
  download_checkpoint(*storage_, key, folder);
  return folder;
}

}  // namespace troupe::storage
