// SPDX-License-Identifier: Apache-2.0
// What passes between the ranks that save a checkpoint and the keeper that commits it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <troupe/json.hpp>

namespace troupe::detail {

/// Checkpoints up to this size travel by value; larger ones stay where they were written, and their place travels.
inline constexpr std::size_t small_checkpoint_bytes = std::size_t{128} << 10;

/// Where a checkpoint can be had.
struct CheckpointSource {
  std::uint64_t id = 0;            ///< 0: there is none
  std::int64_t iteration = 0;      ///< reports that its run had made before it; 0 for one of another run
  std::string bytes;               ///< by value, or
  std::string folder;              ///< a committed folder, or
  std::vector<std::string> files;  ///< shards in memory, in rank order, as paths that this user's processes can open

  explicit operator bool() const { return id != 0; }
};

/// One rank's part of one checkpoint.
struct SavedPart {
  std::uint64_t generation = 0;
  std::uint64_t number = 0;    ///< which save of the attempt: 1, 2, ...
  std::int32_t rank = 0;
  std::int32_t parts = 1;      ///< so many ranks' parts make the checkpoint
  std::int64_t iteration = 0;  ///< reports made before it
  Json metrics;                ///< reported with it; null: none
  std::string bytes;           ///< by value, or
  std::string file;            ///< where the shard was written
  Json shard;                  ///< what the manifest must say of it
  std::string error;           ///< why there is neither
};

/// What became of a save.
struct SaveResult {
  std::uint64_t generation = 0;
  std::uint64_t number = 0;
  CheckpointSource source;  ///< if it was committed
  std::string error;        ///< if it was not
};

}  // namespace troupe::detail
