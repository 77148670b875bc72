// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/collective.hpp"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/waiting.hpp"

namespace troupe {
namespace {

using Kind = Operation::Kind;

constexpr detail::Activity in_all_reduce{detail::WaitsFor::group, "all_reduce()"};
constexpr detail::Activity in_broadcast{detail::WaitsFor::group, "broadcast()"};
constexpr detail::Activity in_all_gather{detail::WaitsFor::group, "all_gather()"};
constexpr detail::Activity in_reduce_scatter{detail::WaitsFor::group, "reduce_scatter()"};
constexpr detail::Activity in_barrier{detail::WaitsFor::group, "barrier()"};

void require_reducible(at::ScalarType type, Reduce reduce, const char* caller) {
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} of {}: {}", caller, c10::toString(type), why));
  };
  const bool adds = reduce == Reduce::sum || reduce == Reduce::mean;
  if (type == at::kBool) {
    if (adds)
      refuse("truth values have min (all) and max (any) only; convert the tensor to count them: .to(at::kLong)");
  } else if (c10::isComplexType(type)) {
    if (!adds) refuse("complex numbers have no order: sum and mean only");
  } else if (type == at::kByte || type == at::kChar || type == at::kShort || type == at::kInt || type == at::kLong) {
    if (reduce == Reduce::mean)
      refuse("the mean of integers is not one; use sum, or convert the tensor to a float type");
  } else if (type != at::kFloat && type != at::kDouble && !is_half(type)) {
    refuse("this type cannot be reduced; convert it to float, half, bfloat16, double, uint8 or a signed integer type");
  }
}

/// What its bytes mean is what the tensor means: nothing is left to be conjugated or negated when it is read.
at::Tensor as_memory(const at::Tensor& tensor) { return tensor.resolve_conj().resolve_neg().contiguous(); }

/// Of quantized tensors only the values would travel.
bool is_plain(const at::Tensor& tensor) { return tensor.layout() == at::kStrided && !tensor.is_quantized(); }

}  // namespace

void Collective::require_usable(const at::Tensor& tensor, const char* caller) const {
  if (!tensor.defined()) throw Error(ErrorCode::invalid_argument, fmt::format("{} was given an empty tensor", caller));
  if (!is_plain(tensor))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} works on dense tensors: convert it with .to_dense() or .dequantize()", caller));
  // GPUs of a host are different devices: NCCL would be given memory of another one.
  if (device().is_cuda() ? tensor.device() != device() : tensor.device().type() != device().type())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} works on {} tensors in this group, this one lives on {}: move it there with "
                            ".to(train::torch::get_device()), or choose another TorchConfig.backend",
                            caller, device().str(), tensor.device().str()));
}

void Collective::all_reduce(at::Tensor& tensor, Reduce reduce) {
  require_usable(tensor, "all_reduce()");
  require_reducible(tensor.scalar_type(), reduce, "all_reduce()");
  c10::NoGradGuard no_grad;
  const Operation operation(Kind::all_reduce, tensor.scalar_type(), tensor.sizes(), reduce);
  const auto flat = as_memory(tensor);
  const bool mean = reduce == Reduce::mean;
  const Waiting waiting(in_all_reduce);
  reduce_flat(flat.is_complex() ? at::view_as_real(flat) : flat, mean ? Reduce::sum : reduce, mean ? 1.0 / size() : 1.0,
              operation);
  if (!flat.is_same(tensor)) tensor.copy_(flat);
}

void Collective::broadcast(at::Tensor& tensor, int root) {
  require_usable(tensor, "broadcast()");
  c10::NoGradGuard no_grad;
  const auto flat = as_memory(tensor);
  const Waiting waiting(in_broadcast);
  broadcast_flat(flat, root, Operation(Kind::broadcast, tensor.scalar_type(), tensor.sizes(), Reduce::sum, root));
  if (rank() != root && !flat.is_same(tensor)) tensor.copy_(flat);
}

std::vector<at::Tensor> Collective::all_gather(const at::Tensor& tensor) {
  require_usable(tensor, "all_gather()");
  c10::NoGradGuard no_grad;
  const auto flat = as_memory(tensor);
  std::vector<at::Tensor> all;
  for (int other = 0; other < size(); ++other) all.push_back(at::empty_like(flat));
  const Waiting waiting(in_all_gather);
  gather_flat(flat, all, Operation(Kind::all_gather, tensor.scalar_type(), tensor.sizes()));
  return all;
}

at::Tensor Collective::to_group(const at::Tensor& values) const {
  return device().is_cpu() ? values : values.to(device());
}

void Collective::broadcast_values(at::Tensor& tensor, int root) {
  auto there = to_group(tensor);
  broadcast(there, root);
  if (!there.is_same(tensor)) tensor.copy_(there);
}

std::vector<at::Tensor> Collective::all_gather_values(const at::Tensor& tensor) {
  auto all = all_gather(to_group(tensor));
  for (auto& one : all) one = one.cpu();
  return all;
}

at::Tensor Collective::reduce_scatter(const at::Tensor& tensor) {
  require_usable(tensor, "reduce_scatter()");
  require_reducible(tensor.scalar_type(), Reduce::sum, "reduce_scatter()");
  if (tensor.dim() == 0 || tensor.size(0) % size() != 0)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("reduce_scatter() cuts the first dimension into a piece for each of {} ranks, which {} does "
                    "not allow: pad the tensor",
                    size(), tensor.dim() == 0 ? "a tensor without dimensions" : fmt::format("{}", tensor.size(0))));
  c10::NoGradGuard no_grad;
  const Waiting waiting(in_reduce_scatter);
  return scatter_flat(as_memory(tensor), Operation(Kind::reduce_scatter, tensor.scalar_type(), tensor.sizes()));
}

at::Tensor Collective::scatter_flat(const at::Tensor& flat, const Operation& operation) {
  const auto sum = flat.clone();
  reduce_flat(sum.is_complex() ? at::view_as_real(sum) : sum, Reduce::sum, 1.0, operation);
  const auto length = sum.size(0) / size();
  return sum.narrow(0, length * rank(), length).clone();
}

void Collective::barrier() {
  const Waiting waiting(in_barrier);
  wait_for_all(Operation(Kind::barrier));
}

}  // namespace troupe
