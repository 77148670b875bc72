// SPDX-License-Identifier: Apache-2.0
// Checkpoints on their way between processes of one host: by value, as a folder, or as shards in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <troupe/checkpoint.hpp>

#include "checkpoint/saved_part.hpp"

namespace troupe::detail {

class ShardReader;

/// What a rank gets of it: its own part where there is one for each rank. Throws io for one that is damaged or gone.
Checkpoint open_source(const CheckpointSource& source, int rank = 0, int world_size = 1);

/// The place as JSON, for a message that is JSON otherwise; nothing for JSON that is none.
Json to_json(const CheckpointSource& source);
std::optional<CheckpointSource> source_of_json(const Json& json);

/// How other processes of this user reach what a descriptor of this one holds, as long as it is open.
std::string path_of(int descriptor);

/// A shard in memory that has no name in any file system. Other processes of this user reach it through `path` as long
/// as this object lives.
class MemoryShard {
public:
  /// Writes the state into new memory.
  MemoryShard(const Checkpoint& state, int rank, std::uint64_t generation);
  /// Opens what another process has there; both keep it.
  explicit MemoryShard(const std::string& path);

  const std::string& path() const { return path_; }
  Checkpoint checkpoint() const;

private:
  std::string path_;
  std::shared_ptr<const ShardReader> reader_;
};

}  // namespace troupe::detail
