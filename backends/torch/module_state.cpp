// SPDX-License-Identifier: Apache-2.0
// state_dict() and load_state_dict() of models.
#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <troupe/torch_checkpoint.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <troupe/error.hpp>

#include "backends/torch/tensor_conversion.hpp"

namespace troupe::train::torch {
namespace {

using Named = std::pair<std::string, at::Tensor>;

void append_own(const ::torch::nn::Module& module, const std::string& prefix, std::vector<Named>& out) {
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    out.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_buffers(/*recurse=*/false)) out.emplace_back(prefix + item.key(), item.value());
}

/// In Python's order: a module's parameters, its buffers, then its children.
std::vector<Named> named_state(const ::torch::nn::Module& module) {
  std::vector<Named> state;
  append_own(module, "", state);
  for (const auto& child : module.named_modules("", /*include_self=*/false))
    append_own(*child.value(), child.key() + ".", state);
  return state;
}

constexpr std::string_view wrapper_prefix = "module.";

/// Tensors of the state by the model's names.
std::map<std::string, ::troupe::TensorData> read_state(const CheckpointItem& item, const std::vector<Named>& own) {
  const auto dictionary = item.as<Checkpoint>();
  const auto prefixed = [](const auto& entry) { return entry.first.starts_with(wrapper_prefix); };
  const bool strip =
      std::all_of(dictionary.begin(), dictionary.end(), prefixed) && std::none_of(own.begin(), own.end(), prefixed);
  std::map<std::string, ::troupe::TensorData> state;
  for (const auto& [key, value] : dictionary) {
    if (!value.is_tensor())
      throw Error(ErrorCode::invalid_argument, fmt::format("load_state_dict(): \"{}\" is {}, not a tensor; "
                                                           "give the part of the checkpoint that "
                                                           "state_dict() made: checkpoint[\"model\"], say",
                                                           key, value.describe()));
    state.emplace(strip ? key.substr(wrapper_prefix.size()) : key, value.as<::troupe::TensorData>());
  }
  return state;
}

std::string shape_of(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ","));
}

struct Comparison {
  IncompatibleKeys keys;
  std::vector<std::string> wrong_shapes;
};

Comparison compare(const std::vector<Named>& own, const std::map<std::string, ::troupe::TensorData>& state) {
  Comparison found;
  std::set<std::string_view> known;
  for (const auto& [name, tensor] : own) {
    known.insert(name);
    const auto it = state.find(name);
    if (it == state.end())
      found.keys.missing_keys.push_back(name);
    else if (!std::ranges::equal(it->second.shape(), tensor.sizes()))
      found.wrong_shapes.push_back(
          fmt::format("{} is {} in the state, {} in the model", name, it->second.describe(), shape_of(tensor)));
  }
  for (const auto& [name, data] : state)
    if (!known.contains(name)) found.keys.unexpected_keys.push_back(name);
  return found;
}

void require_fit(const Comparison& found, bool strict) {
  std::string text;
  const auto list = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) text += fmt::format("\n  {}: {}", what, fmt::join(names, ", "));
  };
  if (strict) {
    list("missing in the state", found.keys.missing_keys);
    list("unexpected in the state", found.keys.unexpected_keys);
  }
  list("of another shape", found.wrong_shapes);
  if (text.empty()) return;
  throw Error(ErrorCode::invalid_argument,
              "load_state_dict(): the state does not fit the model:" + text +
                  "\nBuild the model as it was when it was saved" +
                  (strict && found.wrong_shapes.empty() ? ", or load what fits with strict = false" : ""));
}

void assign(at::Tensor to, const ::troupe::TensorData& from) {
  const bool same_bytes = to.device().is_cpu() && to.is_contiguous() && to.numel() != 0 && !to.is_inference() &&
                          to.scalar_type() == scalar_type_of(from.dtype());
  if (!same_bytes) {
    to.copy_(to_tensor(from));
    return;
  }
  from.copy_to(to.data_ptr());  // one copy, checked on the way
  to.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

Checkpoint state_dict(const ::torch::nn::Module& module) {
  std::vector<CheckpointEntry> entries;
  for (const auto& [name, tensor] : named_state(module)) entries.emplace_back(name, tensor);
  return CheckpointItem::of_entries(std::move(entries)).as<Checkpoint>();
}

IncompatibleKeys load_state_dict(::torch::nn::Module& module, const CheckpointItem& item, bool strict) {
  const auto own = named_state(module);
  const auto state = read_state(item, own);
  auto found = compare(own, state);
  require_fit(found, strict);
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own)
    if (const auto it = state.find(name); it != state.end()) assign(tensor, it->second);
  return std::move(found.keys);
}

}  // namespace troupe::train::torch
