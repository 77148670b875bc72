// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/checkpoint_client.hpp"

#include <ctime>
#include <utility>

#include <troupe/error.hpp>

#include "checkpoint/source.hpp"

namespace troupe::detail {
namespace {

/// One being written and one waiting; a third waits for the first.
constexpr std::size_t most_under_way = 2;

}  // namespace

CheckpointClient::CheckpointClient(int rank, int world_size, CheckpointSetup setup, std::function<void(SavedPart)> send)
    : rank_(rank),
      world_size_(world_size),
      setup_(std::move(setup)),
      send_(std::move(send)),
      latest_(setup_.start) {}

CheckpointClient::~CheckpointClient() { finish(); }

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
  state.set("_timestamp", static_cast<std::int64_t>(std::time(nullptr)));
  state.set("_current_checkpoint_id", setup_.first_id + part.number - 1);
  write(std::move(state), std::move(part));
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
    source = latest_;
  }
  if (!source) return {};
  return {open_source(source), source.iteration};
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
    if (result.source) latest_ = std::move(result.source);
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
