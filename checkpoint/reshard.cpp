// SPDX-License-Identifier: Apache-2.0
// Loads on any number of ranks what another number saved.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "checkpoint/folder.hpp"

namespace troupe::detail {
namespace {

/// Some bytes of a tensor.
struct Piece {
  TensorData tensor;
  std::size_t skip = 0;
  std::size_t size = 0;
};

/// Pieces of several tensors as one; put together when it is first touched.
class JoinedBytes : public TensorBytes {
public:
  explicit JoinedBytes(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  const std::byte* data() const override {
    if (pieces_.size() == 1) return pieces_[0].tensor.data() + pieces_[0].skip;
    std::call_once(once_, [this] {
      std::size_t size = 0;
      for (const auto& piece : pieces_) size += piece.size;
      joined_.resize(size);
      copy_to(joined_.data(), size);
    });
    return joined_.data();
  }
  void copy_to(std::byte* destination, std::size_t /*size*/) const override {
    for (const auto& piece : pieces_) {
      if (piece.size > 0) std::memcpy(destination, piece.tensor.data() + piece.skip, piece.size);
      destination += piece.size;
    }
  }

private:
  std::vector<Piece> pieces_;
  mutable std::once_flag once_;
  mutable std::vector<std::byte> joined_;
};

class Resharder {
public:
  Resharder(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

  /// `items` are those at one place of the parts, null where a part has none; `own` is the one to take values from.
  CheckpointItem merge(const std::string& name, const std::vector<const CheckpointItem*>& items,
                       const CheckpointItem& own) {
    if (own.is_tensor() && own.as<TensorData>().shard()) return join(name, items, own.as<TensorData>());
    if (own.is_dictionary()) return merge_dictionary(name, items, own);
    if (own.kind() == CheckpointItem::Kind::list) return merge_list(name, items, own);
    return own;
  }

private:
  CheckpointItem merge_dictionary(const std::string& name, const std::vector<const CheckpointItem*>& items,
                                  const CheckpointItem& own) {
    Checkpoint result;
    const auto add = [&](const CheckpointEntry& entry) {
      if (result.contains(entry.first)) return;
      std::vector<const CheckpointItem*> inner;
      for (const auto* item : items)
        inner.push_back(item != nullptr && item->is_dictionary() ? find(*item, entry.first) : nullptr);
      result.set(entry.first, merge(name + "[\"" + entry.first + "\"]", inner, entry.second));
    };
    for (const auto& entry : own.entries()) add(entry);
    for (const auto* item : items)
      if (item != nullptr && item->is_dictionary())
        for (const auto& entry : item->entries()) add(entry);
    return result;
  }

  CheckpointItem merge_list(const std::string& name, const std::vector<const CheckpointItem*>& items,
                            const CheckpointItem& own) {
    std::vector<CheckpointItem> elements;
    for (std::size_t index = 0; index < own.size(); ++index) {
      std::vector<CheckpointItem> held;
      held.reserve(items.size());  // pointers into it stay
      std::vector<const CheckpointItem*> inner;
      for (const auto* item : items) {
        const bool has_one = item != nullptr && item->is_list() && index < item->size();
        inner.push_back(has_one ? &held.emplace_back(item->at(index)) : nullptr);
      }
      elements.push_back(merge(fmt::format("{}[{}]", name, index), inner, own.at(index)));
    }
    return CheckpointItem::of_list(std::move(elements));
  }

  CheckpointItem join(const std::string& name, const std::vector<const CheckpointItem*>& items,
                      const TensorData& own) const {
    const auto& global = own.shard()->global_shape;
    std::vector<TensorData> rows;
    for (const auto* item : items) {
      if (item == nullptr) continue;
      const auto tensor = item->is_tensor() ? item->as<TensorData>() : TensorData();
      if (!tensor.shard() || tensor.shard()->global_shape != global || tensor.dtype() != own.dtype())
        refuse(name, "the ranks did not save rows of the same tensor there");
      rows.push_back(tensor);
    }
    std::stable_sort(rows.begin(), rows.end(), [](const TensorData& left, const TensorData& right) {
      return left.shard()->row_offset < right.shard()->row_offset;
    });
    const auto first = share(global[0], rank_);
    const auto last = share(global[0], rank_ + 1);
    const auto row_size = *tensor_size(own.dtype(), {global.begin() + 1, global.end()});
    std::vector<Piece> pieces;
    std::int64_t reached = 0;
    for (const auto& tensor : rows) {
      const auto start = tensor.shard()->row_offset;
      if (start != reached)
        refuse(name, fmt::format("row {} was saved by no rank, or by two", std::min(start, reached)));
      reached = start + tensor.shape()[0];
      const auto from = std::max(first, start);
      const auto to = std::min(last, reached);
      if (from < to)
        pieces.push_back({tensor, static_cast<std::size_t>(from - start) * row_size,
                          static_cast<std::size_t>(to - from) * row_size});
    }
    if (reached != global[0]) refuse(name, fmt::format("row {} was saved by no rank", reached));
    auto shape = global;
    shape[0] = last - first;
    TensorData result(own.dtype(), std::move(shape), std::make_shared<const JoinedBytes>(std::move(pieces)));
    return world_size_ == 1 ? result : result.as_shard_of(global, first);
  }

  /// The first row of a rank.
  std::int64_t share(std::int64_t rows, int rank) const {
    const auto each = rows / world_size_;  // not rows * rank, which may overflow
    return each * rank + rows % world_size_ * rank / world_size_;
  }

  static const CheckpointItem* find(const CheckpointItem& dictionary, const std::string& key) {
    return dictionary.as<Checkpoint>().find(key);  // the item keeps its dictionary
  }

  [[noreturn]] static void refuse(const std::string& name, const std::string& why) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the checkpoint's parts cannot be put together at {}: {}; save every row exactly once, or "
                            "load on as many ranks as saved it",
                            name, why));
  }

  int rank_;
  int world_size_;
};

}  // namespace

Checkpoint reshard(const std::vector<Checkpoint>& parts, int rank, int world_size) {
  if (rank < 0 || rank >= world_size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no rank {} among {}: ranks count from 0", rank, world_size));
  const std::vector<CheckpointItem> roots(parts.begin(), parts.end());
  std::vector<const CheckpointItem*> items;
  for (const auto& root : roots) items.push_back(&root);
  const auto own = static_cast<std::size_t>(rank) % parts.size();
  return Resharder(rank, world_size).merge("checkpoint", items, roots[own]).as<Checkpoint>();
}

}  // namespace troupe::detail
