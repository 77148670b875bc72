// SPDX-License-Identifier: Apache-2.0
// What the classes and functions in a file of torch.save() stand for; nothing else is let in.
#include <fmt/format.h>

#include <array>
#include <optional>

#include <troupe/error.hpp>

#include "checkpoint/interop/pickle.hpp"
#include "checkpoint/interop/torch_types.hpp"
#include "checkpoint/record_limits.hpp"

namespace troupe::detail {
namespace {

constexpr std::array<std::string_view, 7> functions{
    "collections.OrderedDict",
    "torch.Size",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("the pickle is refused: {}", why));
}

const PickleValue& argument(std::string_view function, const PickleList& arguments, std::size_t index) {
  if (index >= arguments.items.size())
    refuse(fmt::format("{} has only {} arguments", function, arguments.items.size()));
  return *arguments.items[index];
}

template <class T>
const T& argument_as(std::string_view function, const PickleList& arguments, std::size_t index) {
  const auto& value = argument(function, arguments, index);
  if (const auto* data = value.as<T>()) return *data;
  refuse(fmt::format("argument {} of {} is {}", index, function, value.describe()));
}

std::vector<std::int64_t> sizes_of(std::string_view function, const PickleList& arguments, std::size_t index) {
  const auto& list = argument_as<PickleList>(function, arguments, index);
  if (list.items.size() > most_dimensions) refuse(fmt::format("a tensor has {} dimensions", list.items.size()));
  std::vector<std::int64_t> sizes;
  for (const auto* item : list.items) {
    const auto* size = item->as<std::int64_t>();
    if (size == nullptr || *size < 0) refuse(fmt::format("a size or stride of a tensor is {}", item->describe()));
    sizes.push_back(*size);
  }
  return sizes;
}

PickleValue make_dict(const PickleList& arguments) {
  PickleDict dict;
  if (arguments.items.empty()) return {std::move(dict)};
  for (const auto* pair : argument_as<PickleList>("OrderedDict", arguments, 0).items) {  // by Python 2
    const auto* items = pair->as<PickleList>();
    if (items == nullptr || items->items.size() != 2) refuse("an OrderedDict is not made of pairs");
    dict.items.emplace_back(items->items[0], items->items[1]);
  }
  return {std::move(dict)};
}

PickleValue make_tensor(const std::string& function, const PickleList& arguments) {
  PickleTensor tensor;
  tensor.storage = &argument_as<PickleStorage>(function, arguments, 0);
  tensor.dtype = tensor.storage->dtype;
  tensor.offset = argument_as<std::int64_t>(function, arguments, 1);
  tensor.sizes = sizes_of(function, arguments, 2);
  tensor.strides = sizes_of(function, arguments, 3);
  if (tensor.offset < 0 || tensor.sizes.size() != tensor.strides.size())
    refuse("a tensor has not one stride for each size, or begins before its storage");
  if (function.ends_with("_v3")) {
    const auto dtype = torch_dtype(argument_as<PickleGlobal>(function, arguments, 6).name);
    if (!dtype) refuse(fmt::format("{} is not the type of a tensor", argument(function, arguments, 6).describe()));
    tensor.dtype = *dtype;
  }
  return {std::move(tensor)};
}

}  // namespace

void require_known_global(const std::string& name) {
  for (const auto function : functions)
    if (name == function) return;
  if (storage_dtype(name) || torch_dtype(name)) return;
  refuse(fmt::format(
      "it needs {}, which is not a part of a state dict. Save only tensors, numbers, strings, lists and dicts: "
      "torch.save(model.state_dict(), path)",
      name));
}

PickleValue call_global(const std::string& name, const PickleList& arguments) {
  if (name == "collections.OrderedDict") return make_dict(arguments);
  if (name == "torch.Size") return {PickleList{argument_as<PickleList>(name, arguments, 0).items, true}};
  if (name.starts_with("torch._utils._rebuild_parameter")) return {argument_as<PickleTensor>(name, arguments, 0)};
  if (name.starts_with("torch._utils._rebuild_tensor")) return make_tensor(name, arguments);
  refuse(fmt::format("it calls {}", name));
}

PickleValue load_persistent(const PickleValue& id) {
  const auto* tuple = id.as<PickleList>();
  if (tuple == nullptr) refuse(fmt::format("a persistent id is {}", id.describe()));
  constexpr std::string_view what = "a storage's id";
  if (argument_as<std::string>(what, *tuple, 0) != "storage") refuse("a persistent id is not that of a storage");
  const auto& type = argument_as<PickleGlobal>(what, *tuple, 1).name;
  const auto dtype = storage_dtype(type);
  const auto count = argument_as<std::int64_t>(what, *tuple, 4);
  if (!dtype || count < 0) refuse(fmt::format("{} elements of {} are not a storage", count, type));
  PickleStorage storage{*dtype, argument_as<std::string>(what, *tuple, 2), static_cast<std::uint64_t>(count), 0};
  if (tuple->items.size() > 5 && tuple->items[5]->as<PickleList>() != nullptr) {  // a view: its own key, offset, size
    const auto& view = *tuple->items[5]->as<PickleList>();
    const auto offset = argument_as<std::int64_t>(what, view, 1);
    if (offset < 0) refuse("a view begins before its storage");
    storage.offset = static_cast<std::uint64_t>(offset);
  }
  return {std::move(storage)};
}

}  // namespace troupe::detail
