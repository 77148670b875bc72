// SPDX-License-Identifier: Apache-2.0
// clip_grad_norm(): gradients are equal on all workers after backward(), so no word is exchanged.
#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <troupe/torch_model.hpp>

#include <cmath>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/distinct_parameters.hpp"

namespace troupe::train::torch {
namespace {

/// The numbers of a gradient. A sparse one is made to name each place once: as often as it is named, it would count.
at::Tensor values_of(at::Tensor& gradient) {
  if (!gradient.is_sparse()) return gradient;
  gradient = gradient.coalesce();
  return gradient._values();
}

/// Of halves as a float: their own type would round it, and end at 65504.
at::Tensor norm_of(const at::Tensor& values, double norm_type) {
  if (values.numel() == 0) return at::zeros({}, at::kDouble);
  const auto type = c10::promoteTypes(values.scalar_type(), at::kFloat);
  return values.norm(norm_type, type).to(at::kCPU, at::kDouble);
}

[[noreturn]] void throw_nonfinite(const std::vector<std::pair<std::string, at::Tensor>>& norms, double norm) {
  std::vector<std::string> names;
  for (const auto& [name, value] : norms)
    if (!std::isfinite(value.item<double>())) names.push_back(name);
  throw Error(
      ErrorCode::invalid_state,
      fmt::format("the gradients' norm is {}, because of {}. A learning rate that is too high or a bad batch on "
                  "one of the workers does that (prepare_model() with check_gradients = true names the worker)",
                  norm, names.empty() ? "their size" : fmt::format("{}", fmt::join(names, ", "))));
}

}  // namespace

double clip_grad_norm(const std::shared_ptr<::torch::nn::Module>& module, double max_norm, const ClipOptions& options) {
  if (!module) throw Error(ErrorCode::invalid_argument, "clip_grad_norm() was given an empty model");
  if (!(max_norm > 0) || !(options.norm_type > 0))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("clip_grad_norm() needs a norm and a norm_type above 0, not {} and {}", max_norm,
                            options.norm_type));
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::vector<std::pair<std::string, at::Tensor>> norms;
  std::vector<at::Tensor> values;
  for (const auto& [name, value] : distinct_parameters(*module)) {
    auto& gradient = value.mutable_grad();
    if (!gradient.defined()) continue;
    gradients.push_back(values_of(gradient));
    values.push_back(norm_of(gradients.back(), options.norm_type));
    norms.emplace_back(name, values.back());
  }
  if (gradients.empty()) return 0;
  const double norm = at::stack(values).norm(options.norm_type).item<double>();
  if (options.error_if_nonfinite && !std::isfinite(norm)) throw_nonfinite(norms, norm);
  // As in libtorch, a norm that is not a number makes the gradients so too.
  if (const double scale = max_norm / (norm + 1e-6); !(scale >= 1))
    for (auto& gradient : gradients) gradient.mul_(scale);
  return norm;
}

}  // namespace troupe::train::torch
