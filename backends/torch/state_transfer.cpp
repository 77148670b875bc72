// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/state_transfer.hpp"

#include <ATen/Functions.h>
#include <troupe/torch_checkpoint.hpp>
#include <troupe/torch_model.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <troupe/error.hpp>

namespace troupe {
namespace {

constexpr std::int64_t piece = std::int64_t{8} << 20;

/// The dictionary without its tensors' bytes: [kind, content]. Tensors are appended to `tensors`, in this order.
Json outline(const CheckpointItem& item, std::vector<TensorData>& tensors) {
  switch (item.kind()) {
    case CheckpointItem::Kind::tensor: {
      tensors.push_back(item.as<TensorData>());
      const auto& tensor = tensors.back();
      return {"tensor", to_string(tensor.dtype()), tensor.shape()};
    }
    case CheckpointItem::Kind::dictionary: {
      Json entries = Json::array();
      for (const auto& [key, value] : item.as<Checkpoint>()) entries.push_back({key, outline(value, tensors)});
      return {"dictionary", std::move(entries)};
    }
    case CheckpointItem::Kind::list: {
      Json elements = Json::array();
      for (std::size_t i = 0; i < item.size(); ++i) elements.push_back(outline(item.at(i), tensors));
      return {"list", std::move(elements)};
    }
    case CheckpointItem::Kind::value:
      return {"value", item.as<Json>()};
    case CheckpointItem::Kind::packed:
      break;
  }
  throw Error(ErrorCode::internal, "a packed value cannot be handed to another worker");
}

/// The other way. `next` gives the tensors: it is told what `mine` has in the same place, null if nothing.
template <class Next>
CheckpointItem filled(const Json& outline, const CheckpointItem* mine, Next& next) {
  const auto kind = outline.at(0).get<std::string>();
  if (kind == "tensor")
    return CheckpointItem::of_tensor(next(dtype_from_string(outline.at(1).get<std::string>()).value(),
                                          outline.at(2).get<std::vector<std::int64_t>>(), mine));
  if (kind == "dictionary") {
    const auto own = mine && mine->kind() == CheckpointItem::Kind::dictionary ? mine->as<Checkpoint>() : Checkpoint();
    std::vector<CheckpointEntry> entries;
    for (const auto& entry : outline.at(1)) {
      const auto key = entry.at(0).get<std::string>();
      entries.emplace_back(key, filled(entry.at(1), own.contains(key) ? &own[key] : nullptr, next));
    }
    return CheckpointItem::of_entries(std::move(entries));
  }
  if (kind == "list") {
    const bool has_list = mine && mine->kind() == CheckpointItem::Kind::list;
    std::vector<CheckpointItem> elements;
    for (std::size_t i = 0; i < outline.at(1).size(); ++i) {
      const auto own = has_list && i < mine->size() ? std::optional(mine->at(i)) : std::nullopt;
      elements.push_back(filled(outline.at(1)[i], own ? &*own : nullptr, next));
    }
    return CheckpointItem::of_list(std::move(elements));
  }
  return CheckpointItem::of_json(outline.at(1));
}

/// The bytes of a tensor of this rank that has that type and shape; null if it has not.
std::byte* memory_of(const CheckpointItem* mine, DType dtype, const std::vector<std::int64_t>& shape) {
  if (!mine || mine->kind() != CheckpointItem::Kind::tensor) return nullptr;
  const auto tensor = mine->as<TensorData>();
  return tensor.dtype() == dtype && tensor.shape() == shape ? const_cast<std::byte*>(tensor.data()) : nullptr;
}

}  // namespace

std::optional<Checkpoint> broadcast_state(Collective& collective, int root, const Checkpoint& state, bool wanted) {
  const bool sends = collective.rank() == root;
  const auto device = train::torch::get_device();
  std::vector<TensorData> tensors;
  const auto structure =
      train::torch::broadcast_json(sends ? outline(CheckpointItem::of_dictionary(state), tensors) : Json(), root);
  std::size_t sent = 0;
  at::Tensor scratch;
  // In pieces: who has no use for the state needs no memory for all of it.
  const auto broadcast = [&](at::Tensor* bytes, std::int64_t length) {
    if (bytes == nullptr && !scratch.defined())
      scratch = at::empty({piece}, at::TensorOptions(device).dtype(at::kByte));
    for (std::int64_t begin = 0; begin < length; begin += piece) {
      const auto size = std::min(piece, length - begin);
      auto part = bytes != nullptr ? bytes->narrow(0, begin, size) : scratch.narrow(0, 0, size);
      collective.broadcast(part, root);
    }
  };
  const auto transfer = [&](DType dtype, const std::vector<std::int64_t>& shape,
                            const CheckpointItem* mine) -> TensorData {
    const auto length = static_cast<std::int64_t>(::troupe::detail::tensor_size(dtype, shape).value());
    if (sends) sent += 1;
    if (length == 0) return TensorData(dtype, shape, nullptr, nullptr);
    if (sends) {
      const auto& tensor = tensors[sent - 1];
      auto bytes = at::from_blob(const_cast<std::byte*>(tensor.data()), {length}, at::kByte).to(device);
      broadcast(&bytes, length);
      return tensor;
    }
    if (!wanted) {
      broadcast(nullptr, length);
      return TensorData();
    }
    if (auto* memory = device.is_cpu() ? memory_of(mine, dtype, shape) : nullptr) {
      auto bytes = at::from_blob(memory, {length}, at::kByte);
      broadcast(&bytes, length);
      return mine->as<TensorData>();
    }
    auto bytes = at::empty({length}, at::TensorOptions(device).dtype(at::kByte));
    broadcast(&bytes, length);
    auto owner = std::make_shared<at::Tensor>(bytes.cpu());
    return TensorData(dtype, shape, owner->data_ptr(), owner);
  };
  const auto own = CheckpointItem::of_dictionary(state);
  auto item = filled(structure, wanted ? &own : nullptr, transfer);
  if (sends || !wanted) return std::nullopt;
  return item.as<Checkpoint>();
}

}  // namespace troupe
