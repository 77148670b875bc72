// SPDX-License-Identifier: Apache-2.0
// A checkpoint as a flat list of records, the form in which it is written: to messages and to the index of a shard.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <troupe/checkpoint.hpp>

namespace troupe::detail {

/// One item. Those of a dictionary or list follow it, in order; the first record is the checkpoint itself.
struct Record {
  CheckpointItem::Kind kind = CheckpointItem::Kind::value;
  std::string key;          ///< in a dictionary
  std::uint64_t count = 0;  ///< dictionary, list: number of entries
  std::string bytes;        ///< value: MessagePack; packed: the binary form
  std::string type;         ///< packed
  std::uint32_t version = 0;
  DType dtype = DType::float32;  ///< tensor, as are all below
  std::vector<std::int64_t> shape;
  std::optional<TensorShard> shard;
  std::uint64_t offset = 0;  ///< of the first byte in the tensors' area
  std::uint64_t length = 0;
};

/// Tensors lie behind one another, each at a multiple of this.
inline constexpr std::uint64_t tensor_alignment = 64;
constexpr std::uint64_t align_tensor(std::uint64_t offset) {
  return (offset + tensor_alignment - 1) / tensor_alignment * tensor_alignment;
}

struct Flat {
  std::vector<Record> records;
  std::vector<TensorData> tensors;  ///< in the order of their records
  std::uint64_t size = 0;           ///< of the tensors' area
};

/// Throws invalid_argument for what the form cannot hold: nested too deep, a key too long, too many dimensions.
Flat flatten(const Checkpoint& checkpoint);
/// `tensor` makes the tensor of a record. Throws invalid_argument when the records are not those of a checkpoint, or
/// the tensors do not cover an area of `size` bytes exactly.
Checkpoint unflatten(std::vector<Record> records, std::uint64_t size,
                     const std::function<TensorData(const Record&)>& tensor);

/// cereal's portable binary form.
std::string write_records(const std::vector<Record>& records);
/// Reads records from the front of `bytes`, which is shortened. Every length is checked before memory is asked for;
/// throws invalid_argument.
std::vector<Record> read_records(std::string_view& bytes);

}  // namespace troupe::detail
