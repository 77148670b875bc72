// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints while training goes on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "checkpoint/file.hpp"
#include "checkpoint/host_buffer.hpp"
#include "checkpoint/records.hpp"
#include "checkpoint/shard_writer.hpp"

namespace troupe::detail {

/// What became of a save.
struct WrittenShard {
  std::optional<Error> error;    ///< why it failed; then nothing of it is left
  ShardInfo info;                ///< of the durable file
  std::shared_ptr<File> memory;  ///< the file in memory, if that was the target
};

/// Copies a checkpoint and writes it behind the caller's back: one is being written, one waits, and a third save waits
/// for the first. Holds at most two copies, one while saves do not overlap; their memory is used again.
class CheckpointWriter {
public:
  using Done = std::function<void(WrittenShard)>;

  CheckpointWriter();
  /// Finishes what was saved.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Returns when the checkpoint is copied. `path` is the new shard's, or empty for a file in memory. `done` is called
  /// on the writer's thread, in the order of the saves. Throws invalid_argument for what no file can hold, io when a
  /// tensor cannot be read, too_large without memory.
  void save(const Checkpoint& checkpoint, std::filesystem::path path, ShardOptions options, Done done);
  /// Returns when all that was saved is written and reported. The writer hurries meanwhile.
  void flush();
  /// Memory held for copies.
  std::uint64_t held_bytes() const;

private:
  struct Job {
    std::vector<Record> records;
    std::uint64_t size = 0;
    HostBuffer buffer;
    std::filesystem::path path;
    ShardOptions options;
    Done done;
  };

  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, Condition&& condition);
  HostBuffer take_buffer();
  void run();
  static WrittenShard write(const Job& job);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HostBuffer> spare_;
  std::uint64_t held_ = 0;
  std::optional<Job> queued_;
  bool is_writing_ = false;
  bool is_stopping_ = false;
  int waiting_ = 0;  ///< who waits for the writer; it hurries then
  int thread_id_ = 0;
  std::thread thread_;
};

}  // namespace troupe::detail
