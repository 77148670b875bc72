// SPDX-License-Identifier: Apache-2.0
// Reads one rank's part of a checkpoint. No byte leaves it before its checksum has been compared.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "checkpoint/file.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/records.hpp"
#include "checkpoint/shard_format.hpp"

namespace troupe::detail {

/// An open shard. Header and index are checked when it is opened; tensors are mapped and checked block by block, when
/// they are first touched. Several threads may use one.
class ShardReader : public std::enable_shared_from_this<ShardReader> {
public:
  /// Throws io when the file is damaged, or is not the one that the manifest means. Of a small one, the descriptor is
  /// given back if it may: thousands of checkpoints can be open at once then.
  static std::shared_ptr<const ShardReader> open(File file, const std::optional<ShardInfo>& expected,
                                                 bool may_close = false);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  /// The dictionary; its tensors keep this object alive.
  Checkpoint checkpoint() const;
  /// Compares all blocks with their checksums; throws io at the first bad one.
  void verify() const;

  const ShardHeader& header() const { return header_; }
  /// Bytes of the tensors' area, checked; throws io.
  const std::byte* data(std::uint64_t offset, std::uint64_t size) const;
  /// Copies bytes of the tensors' area and checks the copy; throws io.
  void copy(std::uint64_t offset, std::uint64_t size, std::byte* destination) const;

private:
  ShardReader(File file, const std::optional<ShardInfo>& expected, bool may_close);
  void map();
  void check_block(std::uint64_t block) const;
  void bring_in(std::uint64_t block) const;
  void compare(std::uint64_t block, const std::byte* bytes) const;
  void read_block(std::uint64_t block, std::byte* destination) const;
  std::uint64_t size_of_block(std::uint64_t block) const;

  File file_;
  ShardHeader header_;
  std::vector<Record> records_;
  std::vector<std::uint32_t> crcs_;
  const std::byte* mapped_ = nullptr;
  /// 1 for blocks that were compared.
  std::unique_ptr<std::atomic<std::uint8_t>[]> checked_;
};

}  // namespace troupe::detail
