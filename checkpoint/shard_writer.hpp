// SPDX-License-Identifier: Apache-2.0
// Writes one rank's part of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "checkpoint/file.hpp"
#include "checkpoint/manifest.hpp"

namespace troupe::detail {

struct ShardOptions {
  int rank = 0;
  std::uint64_t generation = 0;
  bool sync = true;         ///< false for memory files
  bool background = false;  ///< no second thread: the one that writes is at low priority
};

/// "shard_00003_0000000100000002.bin": of rank 3; other generations have other names, so nobody overwrites.
std::string shard_name(int rank, std::uint64_t generation);

/// Bytes of tensors, laid out as in the file.
class ShardData {
public:
  virtual ~ShardData() = default;
  /// `size` bytes from `offset` on, and their checksum in `crc`; `scratch` has room for them. All calls give bytes in
  /// `scratch`, or all give bytes of one piece of memory.
  virtual const std::byte* read(std::uint64_t offset, std::size_t size, std::byte* scratch,
                                std::uint32_t& crc) const = 0;
};

/// Writes a new file and makes it durable; its name is when commit() returns. The file is removed again when that fails
/// (io).
ShardInfo write_shard(const std::filesystem::path& path, const Checkpoint& checkpoint, const ShardOptions& options);
ShardInfo write_shard(const std::filesystem::path& path, const std::string& index, std::uint64_t tensors_size,
                      const ShardData& data, const ShardOptions& options);
/// Writes into an open, empty file.
ShardInfo write_shard(File& file, const Checkpoint& checkpoint, const ShardOptions& options);
ShardInfo write_shard(File& file, const std::string& index, std::uint64_t tensors_size, const ShardData& data,
                      const ShardOptions& options);

}  // namespace troupe::detail
