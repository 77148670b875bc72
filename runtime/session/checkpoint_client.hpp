// SPDX-License-Identifier: Apache-2.0
// A rank's side of checkpoints in one attempt: hands what user code saves to the keeper, and knows the latest that the
// keeper has committed. Its methods may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "checkpoint/saved_part.hpp"
#include "checkpoint/source.hpp"
#include "checkpoint/writer.hpp"

namespace troupe::detail {

class CheckpointClient {
public:
  /// `send` carries parts to the keeper; it is called from user threads and from the writer's. `on_wait`: this rank
  /// does nothing until the save of that number is answered.
  CheckpointClient(
      int rank, int world_size, CheckpointSetup setup, std::function<void(SavedPart)> send,
      std::function<void(std::uint64_t)> on_wait = [](std::uint64_t) {});

  /// Returns when the state is copied. Waits while two saves are under way; throws Stopped once stopped.
  void save(Checkpoint state, bool sharded, std::int64_t iteration, Json metrics);
  struct Loaded {
    std::optional<Checkpoint> checkpoint;
    std::int64_t iteration = 0;  ///< reports that were made before it
    bool is_start = false;       ///< an earlier attempt of this run saved it
  };
  /// The latest one, after those that were saved before are committed.
  Loaded load();
  /// Waits until every save of this rank is committed, or has failed.
  void flush();

  /// The number of saves so far.
  std::uint64_t saves() const;
  /// Counts on from there: a rank that joins late is where the others are.
  void count_from(std::uint64_t saves);
  /// This rank's place in a group that was formed anew.
  void set_place(int rank, int world_size);

  /// Brings a checkpoint that the function returned to where the driver can open it. What lies in memory must be held
  /// until it has.
  struct Returned {
    CheckpointSource source;
    std::shared_ptr<MemoryShard> memory;
  };
  Returned give_back(const Checkpoint& result) const;

  /// The keeper's answer.
  void answer(SaveResult result);
  /// Ends all waits with Stopped.
  void stop();

  /// The function has ended: returns when everything that was saved is on its way to the keeper.
  void finish() noexcept;

private:
  void hand_over(const Checkpoint& state, SavedPart part);
  void written_behind(WrittenShard written, SavedPart part);
  CheckpointWriter& writer();
  void wait_for_answer(std::unique_lock<std::mutex>& lock, std::uint64_t number);
  void wait_for_all_answers(std::unique_lock<std::mutex>& lock);
  void answered_up_to(std::uint64_t number);

  const CheckpointSetup setup_;
  const std::function<void(SavedPart)> send_;
  const std::function<void(std::uint64_t)> on_wait_;

  mutable std::mutex mutex_;
  int rank_;
  int world_size_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::uint64_t saves_ = 0;              // of this rank, counted
  std::uint64_t answered_ = 0;           // the highest number: answers come in order
  std::deque<std::uint64_t> under_way_;  // numbers of this rank's parts, beyond answered_
  // What was committed, by number; 0 is the start. A rank loads none that it has not come to itself, so that all ranks
  // start from the same one, however late; unless that one is gone, since newer ones are kept instead of it.
  std::map<std::uint64_t, CheckpointSource> committed_;
  std::vector<std::pair<std::uint64_t, std::shared_ptr<File>>> memory_;  // what the keeper has not taken over
  std::unique_ptr<CheckpointWriter> writer_;                             // last: its thread uses the others
};

}  // namespace troupe::detail
