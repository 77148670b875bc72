// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/mirror.hpp"

#include <algorithm>
#include <iterator>
#include <ranges>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "checkpoint/folder.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/storage/transfer.hpp"
#include "runtime/base/make_thread.hpp"

namespace troupe::storage {

namespace {

/// The name with the higher number at its end: a longer one has more digits.
std::string later(const std::string& left, const std::string& right) {
  return std::pair(left.size(), left) < std::pair(right.size(), right) ? right : left;
}

}  // namespace

CheckpointMirror::CheckpointMirror(std::unique_ptr<Storage> storage, std::string prefix,
                                   std::function<void(const std::string&)> on_error)
    : storage_(std::move(storage)),
      prefix_(std::move(prefix)),
      on_error_(std::move(on_error)),
      thread_(detail::make_thread("that copies checkpoints to storage", [this] { run(); })) {}

CheckpointMirror::~CheckpointMirror() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointMirror::adopt(std::set<std::string> names) { adopted_ = std::move(names); }

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

void CheckpointMirror::finish(std::chrono::milliseconds limit) {
  storage_->give_up_after(limit);
  {
    std::lock_guard lock(mutex_);
    is_last_ = true;
  }
  flush();
}

void CheckpointMirror::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return next_ || is_ending_; });
    if (!next_) return;
    const auto wanted = std::exchange(next_, std::nullopt).value();
    is_busy_ = true;
    lock.unlock();
    const bool is_there = try_to_reconcile(wanted);
    lock.lock();
    is_busy_ = false;
    if (is_last_ && !is_there) next_.reset();
    changed_.notify_all();
  }
}

/// Whether the store answers. One that does not is told of once, and tried again with the next wish: each checkpoint
/// would wait for it as long as the first.
bool CheckpointMirror::try_to_reconcile(const Wanted& wanted) {
  try {
    reconcile(wanted);
  } catch (const Unavailable& error) {
    on_error_(fmt::format("{} does not answer; what is missing there is tried again later: {}", storage_->name(),
                          error.what()));
    return false;
  } catch (const std::exception& error) {
    on_error_(fmt::format("cannot see what is in {}: {}", storage_->name(), error.what()));
  }
  return true;
}

/// What goes, goes when what stays is there.
void CheckpointMirror::reconcile(const Wanted& wanted) {
  if (!adopted_.empty())
    for (const auto& there : list_checkpoints(*storage_, prefix_ + "/"))
      if (auto name = there.key.substr(prefix_.size() + 1); adopted_.contains(name)) stored_.insert(std::move(name));
  adopted_.clear();
  if (!bring(wanted)) return;
  for (auto stored = stored_.begin(); stored != stored_.end();) {
    if (wanted.contains(*stored)) {
      ++stored;
      continue;
    }
    stored = try_to_remove(*stored, remove_checkpoint) ? stored_.erase(stored) : std::next(stored);
  }
}

/// The newest first: it is the one that somebody needs. Whether all are there.
bool CheckpointMirror::bring(const Wanted& wanted) {
  bool is_whole = true;
  for (const auto& [name, folder] : std::views::reverse(wanted)) {
    if (folder.empty() || stored_.contains(name)) continue;
    try {
      upload_checkpoint(folder, *storage_, key_of(name));
      stored_.insert(name);
    } catch (const Unavailable&) {
      throw;
    } catch (const std::exception& error) {
      // One that was removed or moved here meanwhile: the next wish says which, and what was copied of it goes.
      std::error_code ignored;
      if (!std::filesystem::exists(folder / detail::manifest_name, ignored)) {
        try_to_remove(name, remove_unfinished);
        continue;
      }
      is_whole = false;
      on_error_(fmt::format("{} is not in {}: {}", name, storage_->name(), error.what()));
    }
  }
  return is_whole;
}

bool CheckpointMirror::try_to_remove(const std::string& name, void (*remove)(Storage&, const std::string&)) {
  try {
    remove(*storage_, key_of(name));
    return true;
  } catch (const Unavailable&) {
    throw;
  } catch (const std::exception& error) {
    on_error_(fmt::format("{} is still in {}: {}", name, storage_->name(), error.what()));
    return false;
  }
}

std::optional<CheckpointMirror::Fetched> CheckpointMirror::fetch_latest(const std::filesystem::path& parent) {
  std::vector<std::string> names;
  for (const auto& stored : list_checkpoints(*storage_, prefix_ + "/"))
    names.push_back(stored.key.substr(prefix_.size() + 1));
  if (names.empty()) return std::nullopt;
  std::sort(names.begin(), names.end(), [](const std::string& left, const std::string& right) {
    return left != right && later(left, right) == left;
  });
  for (const auto& name : names) {
    try {
      fetch(name, parent / name);
      return Fetched{parent / name, names.front()};
    } catch (const Unavailable&) {
      throw;
    } catch (const Error& error) {
      on_error_(fmt::format("{} in {} is passed over: {}", name, storage_->name(), error.what()));
    }
  }
  throw Error(ErrorCode::io,
              fmt::format("{} holds {} checkpoint(s) of this run, and none of them is whole: remove them, "
                          "or start without resume",
                          storage_->name(), names.size()));
}

/// Every byte is checked before anybody goes on from it.
void CheckpointMirror::fetch(const std::string& name, const std::filesystem::path& folder) {
  download_checkpoint(*storage_, key_of(name), folder);
  try {
    detail::CheckpointFolder::open(folder)->verify();
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    throw;
  }
}

std::optional<std::string> latest_stored_run(Storage& storage, const std::string& prefix) {
  std::string newest;
  for (const auto& stored : list_checkpoints(storage, prefix + "/")) {
    const auto run = stored.key.substr(prefix.size() + 1);
    newest = later(newest, run.substr(0, run.find('/')));
  }
  return newest.empty() ? std::nullopt : std::optional(newest);
}

}  // namespace troupe::storage
