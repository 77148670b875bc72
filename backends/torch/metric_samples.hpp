// SPDX-License-Identifier: Apache-2.0
// Checks what users hand to metrics, and brings it into one form.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

namespace troupe::train::torch::metrics::detail {

/// Classes of each sample: contiguous 64-bit integers on the CPU, both of shape [N].
struct Classes {
  at::Tensor predicted;
  at::Tensor targets;
};

/// Scores or classes, as the public header says; `metric` names the caller in messages. Throws invalid_argument.
Classes read_classes(const char* metric, const at::Tensor& predictions, const at::Tensor& targets,
                     std::int64_t num_classes = std::numeric_limits<std::int64_t>::max());

/// Target classes from 0 up to `num_classes`: contiguous 64-bit integers on the CPU, shape [N].
at::Tensor read_targets(const char* metric, const at::Tensor& targets, std::int64_t num_classes);

/// Throws for an undefined, sparse or complex tensor.
void require_dense_numbers(const at::Tensor& tensor, const char* metric, const char* what);
/// Throws if any score is NaN.
void require_no_nan(const at::Tensor& scores, const char* metric);
/// Throws unless there are as many predictions as targets.
void require_same_length(const char* metric, const at::Tensor& predictions, const at::Tensor& targets);

}  // namespace troupe::train::torch::metrics::detail
