// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/records.hpp"

#include <fmt/format.h>

#include <utility>

#include <troupe/error.hpp>

#include "checkpoint/record_limits.hpp"

namespace troupe::detail {
namespace {

using Kind = CheckpointItem::Kind;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("the checkpoint cannot be written: {}", why));
}

[[noreturn]] void refuse_records(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("these are not the records of a checkpoint: {}", why));
}

class Flattener {
public:
  void add(const std::string& key, const CheckpointItem& item, int depth) {
    if (depth > deepest_nesting)
      refuse(fmt::format("it is nested more than {} levels deep: flatten it", deepest_nesting));
    if (key.size() > longest_key)
      refuse(fmt::format("a key of {} bytes is longer than {}: \"{}...\"", key.size(), longest_key, key.substr(0, 40)));
    auto& record = flat.records.emplace_back();
    record.kind = item.kind();
    record.key = key;
    switch (item.kind()) {
      case Kind::value:
        record.bytes = pack(item.to_json());
        break;
      case Kind::packed:
        record.type = item.packed_type();
        record.version = item.packed_version();
        record.bytes = item.packed_bytes({});
        break;
      case Kind::tensor:
        add_tensor(record, item.as<TensorData>());
        break;
      case Kind::dictionary:
        record.count = item.size();
        for (const auto& [name, value] : item.entries()) add(name, value, depth + 1);
        break;
      case Kind::list:
        record.count = item.size();
        for (std::size_t index = 0; index < item.size(); ++index) add({}, item.at(index), depth + 1);
        break;
    }
  }

  Flat flat;

private:
  void add_tensor(Record& record, TensorData tensor) {
    if (tensor.shape().size() > most_dimensions)
      refuse(fmt::format("the tensor {} has more than {} dimensions", tensor.describe(), most_dimensions));
    record.dtype = tensor.dtype();
    record.shape = tensor.shape();
    record.shard = tensor.shard();
    record.offset = align_tensor(flat.size);
    record.length = tensor.bytes();
    flat.size = record.offset + record.length;
    flat.tensors.push_back(std::move(tensor));
  }
};

class Unflattener {
public:
  Unflattener(std::vector<Record> records, const std::function<TensorData(const Record&)>& tensor)
      : records_(std::move(records)), tensor_(tensor) {}

  Checkpoint run(std::uint64_t size) {
    if (records_.empty() || records_[0].kind != Kind::dictionary) refuse_records("the first is not a dictionary");
    auto item = next(0);
    if (place_ != records_.size()) refuse_records(fmt::format("{} are left over", records_.size() - place_));
    if (covered_ != size) refuse_records("the tensors do not cover their area");
    return item.as<Checkpoint>();
  }

private:
  CheckpointItem next(int depth) {
    if (depth > deepest_nesting) refuse_records("nested too deep");
    if (place_ == records_.size()) refuse_records("some are missing");
    auto& record = records_[place_++];
    switch (record.kind) {
      case Kind::value:
        return CheckpointItem::of_json(unpack(record.bytes));
      case Kind::packed:
        return CheckpointItem::of_packed(std::move(record.type), record.version, std::move(record.bytes));
      case Kind::tensor:
        return next_tensor(record);
      case Kind::dictionary:
      case Kind::list:
        break;
    }
    if (record.count > records_.size() - place_) refuse_records("some are missing");
    return record.kind == Kind::dictionary ? next_dictionary(record.count, depth) : next_list(record.count, depth);
  }

  CheckpointItem next_dictionary(std::uint64_t count, int depth) {
    std::vector<CheckpointEntry> entries;
    entries.reserve(count);
    for (; count > 0; --count) {
      if (place_ == records_.size()) refuse_records("some are missing");
      auto key = std::move(records_[place_].key);
      entries.emplace_back(std::move(key), next(depth + 1));
    }
    return CheckpointItem::of_entries(std::move(entries));
  }

  CheckpointItem next_list(std::uint64_t count, int depth) {
    std::vector<CheckpointItem> elements;
    elements.reserve(count);
    for (; count > 0; --count) elements.push_back(next(depth + 1));
    return CheckpointItem::of_list(std::move(elements));
  }

  CheckpointItem next_tensor(const Record& record) {
    const auto size = tensor_size(record.dtype, record.shape);
    if (!size || *size != record.length) refuse_records("a tensor's length is not that of its shape");
    if (record.offset != align_tensor(covered_) || record.offset < covered_ ||
        record.length > UINT64_MAX - tensor_alignment - record.offset)
      refuse_records("a tensor is not where it must be");
    covered_ = record.offset + record.length;
    auto tensor = tensor_(record);
    if (record.shard) tensor = tensor.as_shard_of(record.shard->global_shape, record.shard->row_offset);
    return CheckpointItem::of_tensor(std::move(tensor));
  }

  std::vector<Record> records_;
  const std::function<TensorData(const Record&)>& tensor_;
  std::size_t place_ = 0;
  std::uint64_t covered_ = 0;
};

}  // namespace

Flat flatten(const Checkpoint& checkpoint) {
  Flattener flattener;
  flattener.add({}, checkpoint, 0);
  return std::move(flattener.flat);
}

Checkpoint unflatten(std::vector<Record> records, std::uint64_t size,
                     const std::function<TensorData(const Record&)>& tensor) {
  return Unflattener(std::move(records), tensor).run(size);
}

}  // namespace troupe::detail
