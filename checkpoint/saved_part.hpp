// SPDX-License-Identifier: Apache-2.0
// What passes between the ranks that save a checkpoint and the keeper that commits it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <troupe/json.hpp>

#include "checkpoint/manifest.hpp"

namespace troupe::detail {

/// Checkpoints up to this size travel by value; larger ones stay where they were written, and their place travels.
inline constexpr std::size_t small_checkpoint_bytes = std::size_t{128} << 10;

/// Where a checkpoint can be had.
struct CheckpointSource {
  std::uint64_t id = 0;            ///< 0: it is of no run
  std::int64_t iteration = 0;      ///< reports that its run had made before it; 0 for one of another run
  std::string bytes;               ///< by value, or
  std::string folder;              ///< a committed folder, or
  std::vector<std::string> files;  ///< shards in memory, in rank order, as paths that this user's processes can open

  /// Whether there is one.
  explicit operator bool() const { return !bytes.empty() || !folder.empty() || !files.empty(); }
};

/// What a rank needs to know of checkpoints when an attempt begins.
struct CheckpointSetup {
  std::uint64_t generation = 0;
  std::uint64_t first_id = 1;  ///< of the attempt's first checkpoint
  std::string folder;          ///< where shards are written; empty: into memory
  CheckpointSource start;      ///< what load_checkpoint() gives before the first save
  std::string results;         ///< where large checkpoints go that the function returns; empty: into memory
};

/// One rank's part of one checkpoint.
struct SavedPart {
  std::uint64_t generation = 0;
  std::uint64_t number = 0;  ///< which save of the attempt: 1, 2, ...
  std::int32_t rank = 0;
  std::int32_t parts = 1;          ///< so many ranks' parts make the checkpoint
  std::int64_t iteration = 0;      ///< reports made before it
  Json metrics;                    ///< reported with it; null: none
  std::string bytes;               ///< by value, or
  std::string memory;              ///< a shard in memory, as a path, or
  std::optional<ShardInfo> shard;  ///< a shard in the checkpoint's folder, or
  bool has_files = false;          ///< the user's files in there
  std::vector<FileInfo> files;
  std::string error;  ///< why there is nothing
};

/// What was written to disk of a part, as it travels.
Json written_to_json(const SavedPart& part);
void written_from_json(const Json& json, SavedPart& part);

/// What became of a save.
struct SaveResult {
  std::uint64_t generation = 0;
  std::uint64_t number = 0;
  CheckpointSource source;  ///< if it was committed
  std::string error;        ///< if it was not
};

}  // namespace troupe::detail
