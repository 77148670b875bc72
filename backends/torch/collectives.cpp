// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <troupe/torch_c10d.hpp>
#include <troupe/torch_collectives.hpp>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/gather_unequal.hpp"
#include "backends/torch/gloo_group.hpp"
#include "backends/torch/torch_group.hpp"
#include "runtime/session/session.hpp"

namespace troupe::train::torch {
namespace {

void require_root(int root, int size) {
  if (root < 0 || root >= size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no rank {}: the group has ranks 0 to {}", root, size - 1));
}

at::Tensor as_tensor(const std::string& bytes, std::int64_t length) {
  auto tensor = at::zeros({length}, at::kByte);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string as_bytes(const at::Tensor& tensor, std::int64_t length) {
  return {static_cast<const char*>(tensor.data_ptr()), static_cast<std::size_t>(length)};
}

}  // namespace

at::Tensor all_reduce(at::Tensor tensor, Reduce reduce) {
  auto group = TorchGroup::current("all_reduce()");
  if (group->size() > 1) group->collective()->all_reduce(tensor, reduce);
  return tensor;
}

at::Tensor broadcast(at::Tensor tensor, int root) {
  auto group = TorchGroup::current("broadcast()");
  require_root(root, group->size());
  if (group->size() > 1) group->collective()->broadcast(tensor, root);
  return tensor;
}

std::vector<at::Tensor> all_gather(const at::Tensor& tensor) {
  auto group = TorchGroup::current("all_gather()");
  if (group->size() == 1) return {tensor.clone()};
  return group->collective()->all_gather(tensor);
}

at::Tensor reduce_scatter(const at::Tensor& tensor) {
  auto group = TorchGroup::current("reduce_scatter()");
  if (group->size() == 1) return tensor.clone();
  return group->collective()->reduce_scatter(tensor);
}

void barrier() {
  // The others have passed it long ago.
  if (troupe::detail::Session::require("barrier()")->joining()) return;
  auto group = TorchGroup::current("barrier()");
  if (group->size() > 1) group->collective()->barrier();
}

std::vector<Json> all_gather_json(const Json& value) {
  const auto bytes = troupe::detail::pack(value);
  std::vector<Json> values;
  for (const auto& one : all_gather_lists(as_tensor(bytes, static_cast<std::int64_t>(bytes.size()))))
    values.push_back(troupe::detail::unpack(as_bytes(one, one.numel())));
  return values;
}

Json broadcast_json(const Json& value, int root) {
  auto group = TorchGroup::current("broadcast_json()");
  require_root(root, group->size());
  const auto bytes = troupe::detail::pack(value);
  if (group->size() == 1) return troupe::detail::unpack(bytes);
  const auto own = group->rank() == root ? bytes : std::string();
  auto length = at::full({1}, static_cast<std::int64_t>(own.size()), at::kLong);
  group->collective()->broadcast_values(length, root);
  auto tensor = as_tensor(own, std::max<std::int64_t>(length.item<std::int64_t>(), 1));
  group->collective()->broadcast_values(tensor, root);
  return troupe::detail::unpack(as_bytes(tensor, length.item<std::int64_t>()));
}

c10::intrusive_ptr<c10d::ProcessGroup> process_group() {
  return TorchGroup::current("process_group()")->process_group();
}

}  // namespace troupe::train::torch

namespace troupe {

std::vector<at::Tensor> all_gather_values(const at::Tensor& values) {
  auto group = TorchGroup::current("all_gather()");
  if (group->size() == 1) return {values.clone()};
  return group->collective()->all_gather_values(values);
}

}  // namespace troupe
