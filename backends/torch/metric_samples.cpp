// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/metric_samples.hpp"

#include <ATen/Functions.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <troupe/error.hpp>

namespace troupe::train::torch::metrics::detail {
namespace {

[[noreturn]] void refuse(const char* metric, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}::update(): {}", metric, why));
}

std::string shape_of(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

at::Tensor as_classes(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU, at::kLong).contiguous(); }

void require_classes(const char* metric, const char* what, const at::Tensor& classes, std::int64_t num_classes) {
  const auto* values = classes.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < classes.numel(); ++i) {
    if (values[i] >= 0 && values[i] < num_classes) continue;
    if (num_classes == std::numeric_limits<std::int64_t>::max())
      refuse(metric, fmt::format("{}[{}] is {}; classes are numbered from 0", what, i, values[i]));
    refuse(metric,
           fmt::format("{}[{}] is {}; valid: 0 to {} ({} classes)", what, i, values[i], num_classes - 1, num_classes));
  }
}

}  // namespace

void require_dense_numbers(const at::Tensor& tensor, const char* metric, const char* what) {
  if (!tensor.defined()) refuse(metric, fmt::format("the {} are an undefined tensor", what));
  if (tensor.is_sparse()) refuse(metric, fmt::format("the {} are a sparse tensor; give {}.to_dense()", what, what));
  if (tensor.is_complex()) refuse(metric, fmt::format("the {} are complex numbers", what));
}

void require_no_nan(const at::Tensor& scores, const char* metric) {
  if (scores.is_floating_point() && scores.isnan().any().item<bool>())
    refuse(metric, "a score is NaN; the model or its input is broken, or the training has diverged");
}

void require_same_length(const char* metric, const at::Tensor& predictions, const at::Tensor& targets) {
  if (predictions.size(0) != targets.numel())
    refuse(metric, fmt::format("{} predictions (shape {}) for {} targets (shape {})", predictions.size(0),
                               shape_of(predictions), targets.numel(), shape_of(targets)));
}

at::Tensor read_targets(const char* metric, const at::Tensor& targets, std::int64_t num_classes) {
  require_dense_numbers(targets, metric, "targets");
  if (targets.dim() != 1)
    refuse(metric, fmt::format("targets of shape {} are refused; valid: [N], one class a sample{}", shape_of(targets),
                               targets.dim() == 2 ? " (one-hot rows: targets.argmax(1))" : ""));
  if (targets.is_floating_point())
    refuse(metric, "targets are floating-point numbers; valid: integers or bools (targets.to(torch::kLong))");
  auto classes = as_classes(targets);
  require_classes(metric, "targets", classes, num_classes);
  return classes;
}

Classes read_classes(const char* metric, const at::Tensor& predictions, const at::Tensor& targets,
                     std::int64_t num_classes) {
  require_dense_numbers(predictions, metric, "predictions");
  const auto dims = predictions.dim();
  if (dims != 1 && dims != 2)
    refuse(metric, fmt::format("predictions of shape {} are refused; valid: [N, classes] scores, or [N]",
                               shape_of(predictions)));
  const auto known = dims == 2 ? std::min(predictions.size(1), num_classes) : num_classes;
  if (dims == 2) {
    if (!predictions.is_floating_point())
      refuse(metric, "predictions of shape [N, classes] are scores and must be floating point; classes have shape [N]");
    if (predictions.size(1) < 2)
      refuse(metric, fmt::format("predictions of shape {} are refused: one score a sample has shape [N] "
                                 "(predictions.squeeze(1))",
                                 shape_of(predictions)));
    if (num_classes != std::numeric_limits<std::int64_t>::max() && predictions.size(1) != num_classes)
      refuse(metric, fmt::format("predictions have scores for {} classes, the metric was made for {}",
                                 predictions.size(1), num_classes));
  }
  auto classes = read_targets(metric, targets, known);
  require_same_length(metric, predictions, classes);
  require_no_nan(predictions, metric);
  if (dims == 2) return {as_classes(predictions.argmax(1)), classes};
  if (predictions.is_floating_point()) {
    require_classes(metric, "targets", classes, 2);
    return {as_classes(predictions.ge(0.5)), classes};
  }
  auto predicted = as_classes(predictions);
  require_classes(metric, "predictions", predicted, num_classes);
  return {std::move(predicted), std::move(classes)};
}

}  // namespace troupe::train::torch::metrics::detail
