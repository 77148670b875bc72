// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/checkpoint_client.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "checkpoint/folder.hpp"
#include "checkpoint/scan.hpp"

namespace troupe::detail {
namespace {

/// One being written and one waiting; a third waits for the first.
constexpr std::size_t most_under_way = 2;

}  // namespace

CheckpointClient::CheckpointClient(int rank, int world_size, CheckpointSetup setup, std::function<void(SavedPart)> send)
    : rank_(rank), world_size_(world_size), setup_(std::move(setup)), send_(std::move(send)) {
  if (setup_.start) committed_[0] = setup_.start;
}

void CheckpointClient::save(Checkpoint state, bool sharded, std::int64_t iteration, Json metrics) {
  SavedPart part;
  {
    std::unique_lock lock(mutex_);
    part.number = ++saves_;
    // Without shards all ranks hold the same state, and the first one's is kept.
    if (!sharded && rank_ != 0) return;
    changed_.wait(lock, [this] { return stopped_ || under_way_.size() < most_under_way; });
    if (stopped_) throw Stopped();
    under_way_.push_back(part.number);
  }
  part.generation = setup_.generation;
  part.rank = rank_;
  part.parts = sharded ? world_size_ : 1;
  part.iteration = iteration;
  part.metrics = std::move(metrics);
  if (!state.has_files()) {
    state.set("_timestamp", static_cast<std::int64_t>(std::time(nullptr)));
    state.set("_current_checkpoint_id", setup_.first_id + part.number - 1);
  }
  hand_over(state, std::move(part));
}

/// Small ones travel by value, and the keeper writes them. Others are written here, behind the function's back.
void CheckpointClient::hand_over(const Checkpoint& state, SavedPart part) {
  try {
    const auto folder = std::filesystem::path(setup_.folder) / checkpoint_name(setup_.first_id + part.number - 1);
    if (state.has_files()) {
      if (setup_.folder.empty())
        throw Error(ErrorCode::invalid_argument, "a folder of files needs the disk, and num_to_keep is 0");
      part.has_files = true;
      make_folder(folder);
      const bool is_saved = std::filesystem::exists(state.path() / manifest_name);
      part.files = copy_files(is_saved ? state.path() / files_folder : state.path(), folder / files_folder);
    } else if (state.bytes() <= small_checkpoint_bytes) {
      part.bytes = encode(state);
    } else {
      if (!setup_.folder.empty()) make_folder(folder);
      const ShardOptions options{.rank = rank_, .generation = setup_.generation, .sync = !setup_.folder.empty()};
      return writer().save(
          state, setup_.folder.empty() ? std::filesystem::path() : folder / shard_name(rank_, setup_.generation),
          options, [this, part](WrittenShard written) { written_behind(std::move(written), part); });
    }
  } catch (const std::exception& error) {
    part.error = error.what();  // training goes on, and the one before stays
  }
  send_(std::move(part));
}

void CheckpointClient::written_behind(WrittenShard written, SavedPart part) {
  if (written.error) {
    part.error = written.error->what();
  } else if (written.memory) {
    part.memory = fmt::format("/proc/{}/fd/{}", ::getpid(), written.memory->descriptor());
    std::lock_guard lock(mutex_);
    memory_.emplace_back(part.number, std::move(written.memory));
  } else {
    part.shard = std::move(written.info);
  }
  send_(std::move(part));
}

CheckpointWriter& CheckpointClient::writer() {
  std::lock_guard lock(mutex_);
  if (!writer_) writer_ = std::make_unique<CheckpointWriter>();
  return *writer_;
}

void CheckpointClient::finish() noexcept {
  CheckpointWriter* writer = nullptr;
  {
    std::lock_guard lock(mutex_);
    writer = writer_.get();
  }
  if (writer) writer->flush();
  // Memory goes with this process's descriptors, so it stays until the keeper has its own.
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(5), [this] { return memory_.empty(); });
}

void CheckpointClient::wait_for_answers(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] { return stopped_ || answered_ >= saves_; });
  if (answered_ < saves_) throw Stopped();
}

std::pair<std::optional<Checkpoint>, std::int64_t> CheckpointClient::load() {
  CheckpointSource source;
  {
    std::unique_lock lock(mutex_);
    wait_for_answers(lock);
    const auto beyond = committed_.upper_bound(saves_);
    if (beyond != committed_.begin()) source = std::prev(beyond)->second;
  }
  if (!source) return {};
  return {open_source(source, rank_, world_size_), source.iteration};
}

void CheckpointClient::flush() {
  std::unique_lock lock(mutex_);
  wait_for_answers(lock);
}

void CheckpointClient::answer(SaveResult result) {
  {
    std::lock_guard lock(mutex_);
    answered_ = std::max(answered_, result.number);
    while (!under_way_.empty() && under_way_.front() <= answered_) under_way_.pop_front();
    std::erase_if(memory_, [this](const auto& shard) { return shard.first <= answered_; });  // the keeper has it
    if (result.source) {
      committed_[result.number] = std::move(result.source);
      // Older ones than the one that load() would give are of no use.
      const auto mine = std::prev(committed_.upper_bound(std::max(saves_, committed_.begin()->first)));
      committed_.erase(committed_.begin(), mine);
    }
  }
  changed_.notify_all();
}

void CheckpointClient::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace troupe::detail
