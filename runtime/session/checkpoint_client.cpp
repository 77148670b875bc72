// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/checkpoint_client.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "checkpoint/folder.hpp"
#include "checkpoint/scan.hpp"

namespace troupe::detail {
namespace {

/// One being written and one waiting; a third waits for the first.
constexpr std::size_t most_under_way = 2;
/// A checkpoint goes when a newer one is there; its answer is at most so far behind.
constexpr std::chrono::seconds answer_patience{10};

bool is_gone(const CheckpointSource& source) {
  std::error_code ignored;
  const auto is_there = [&](const std::filesystem::path& path) { return std::filesystem::exists(path, ignored); };
  if (!source.folder.empty()) return !is_there(std::filesystem::path(source.folder) / manifest_name);
  return !std::all_of(source.files.begin(), source.files.end(), is_there);
}

}  // namespace

CheckpointClient::CheckpointClient(int rank, int world_size, CheckpointSetup setup, std::function<void(SavedPart)> send,
                                   std::function<void(std::uint64_t)> on_wait)
    : setup_(std::move(setup)),
      send_(std::move(send)),
      on_wait_(std::move(on_wait)),
      rank_(rank),
      world_size_(world_size) {
  if (setup_.start) committed_[0] = setup_.start;
}

void CheckpointClient::save(Checkpoint state, bool sharded, std::int64_t iteration, Json metrics) {
  SavedPart part;
  {
    std::unique_lock lock(mutex_);
    part.number = ++saves_;
    // Without shards all ranks hold the same state, and the first one's is kept.
    if (!sharded && rank_ != 0) return;
    while (!stopped_ && under_way_.size() >= most_under_way) wait_for_answer(lock, under_way_.front());
    if (stopped_) throw Stopped();
    // Decided without this rank, which is late: another one was lost before it had saved.
    if (part.number <= answered_) return;
    under_way_.push_back(part.number);
    part.rank = rank_;
    part.parts = sharded ? world_size_ : 1;
  }
  part.generation = setup_.generation;
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
        throw Error(ErrorCode::invalid_argument,
                    "a folder of files needs the disk, and num_to_keep is 0: keep one, or save a dictionary");
      // Here and now: the function may change its files once this returns.
      part.has_files = true;
      make_folder(folder);
      part.files =
          copy_files(is_saved(state.path()) ? state.path() / files_folder : state.path(), folder / files_folder);
    } else if (state.bytes() <= small_checkpoint_bytes) {
      part.bytes = encode(state);
    } else {
      if (!setup_.folder.empty()) make_folder(folder);
      const ShardOptions options{.rank = part.rank, .generation = setup_.generation, .sync = !setup_.folder.empty()};
      return writer().save(
          state, setup_.folder.empty() ? std::filesystem::path() : folder / shard_name(part.rank, setup_.generation),
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
    part.memory = path_of(written.memory->descriptor());
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

/// Also returns when stopped.
void CheckpointClient::wait_for_answer(std::unique_lock<std::mutex>& lock, std::uint64_t number) {
  const auto is_over = [&] { return stopped_ || answered_ >= number; };
  if (is_over()) return;
  on_wait_(number);
  changed_.wait(lock, is_over);
}

void CheckpointClient::wait_for_all_answers(std::unique_lock<std::mutex>& lock) {
  const auto last = saves_;
  wait_for_answer(lock, last);
  if (answered_ < last) throw Stopped();
}

CheckpointClient::Loaded CheckpointClient::load() {
  std::unique_lock lock(mutex_);
  wait_for_all_answers(lock);
  const auto beyond = committed_.upper_bound(saves_);
  if (beyond == committed_.begin()) return {};
  const int rank = rank_;
  const int world_size = world_size_;
  auto number = std::prev(beyond)->first;
  auto source = std::prev(beyond)->second;
  for (;;) {
    lock.unlock();
    try {
      return {open_source(source, rank, world_size), source.iteration, number == 0 && source.id != 0};
    } catch (const Error&) {
      if (!is_gone(source)) throw;
      lock.lock();
      // This rank is so late that a newer one has taken its place. The answer that names it may still be on its way.
      changed_.wait_for(lock, answer_patience, [&] { return stopped_ || committed_.rbegin()->first > number; });
      if (committed_.rbegin()->first <= number) throw;
      std::tie(number, source) = *committed_.rbegin();
    }
  }
}

void CheckpointClient::flush() {
  std::unique_lock lock(mutex_);
  wait_for_all_answers(lock);
}

std::uint64_t CheckpointClient::saves() const {
  std::lock_guard lock(mutex_);
  return saves_;
}

void CheckpointClient::count_from(std::uint64_t saves) {
  std::lock_guard lock(mutex_);
  saves_ = saves;
  answered_up_to(saves);  // of the others' saves no answer will come
}

void CheckpointClient::answered_up_to(std::uint64_t number) {
  answered_ = std::max(answered_, number);
  while (!under_way_.empty() && under_way_.front() <= answered_) under_way_.pop_front();
}

void CheckpointClient::set_place(int rank, int world_size) {
  std::lock_guard lock(mutex_);
  rank_ = rank;
  world_size_ = world_size;
}

CheckpointClient::Returned CheckpointClient::give_back(const Checkpoint& result) const {
  Returned returned;
  int rank = 0;
  {
    std::lock_guard lock(mutex_);
    rank = rank_;
  }
  if (!result.has_files() && result.bytes() <= small_checkpoint_bytes) {
    returned.source.bytes = encode(result);
  } else if (!setup_.results.empty()) {
    auto folder = std::filesystem::path(setup_.results) / fmt::format("rank_{}", rank);
    make_folder(folder.parent_path());
    while (std::filesystem::exists(folder)) folder += "_again";  // of a rank that had this number and is gone
    result.to_directory(folder);
    returned.source.folder = folder.string();
  } else if (result.has_files()) {
    throw Error(ErrorCode::invalid_argument, "to return a folder of files needs the disk, and num_to_keep is 0");
  } else {
    returned.memory = std::make_shared<MemoryShard>(result, rank, setup_.generation);
    returned.source.files = {returned.memory->path()};
  }
  return returned;
}

void CheckpointClient::answer(SaveResult result) {
  {
    std::lock_guard lock(mutex_);
    answered_up_to(result.number);
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
