// SPDX-License-Identifier: Apache-2.0
// Tensors of all ranks whose lengths differ: the pieces of a gather are equal, so they travel padded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace troupe {

/// One tensor a rank, in rank order. `lengths`: of all ranks' tensors along `dim`; all else of their shapes is equal.
/// `gather` is a gather of equal ones, which is not called where all are empty.
std::vector<at::Tensor> gather_unequal(const at::Tensor& mine, std::int64_t dim,
                                       const std::vector<std::int64_t>& lengths,
                                       const std::function<std::vector<at::Tensor>(const at::Tensor&)>& gather);

/// all_gather_values() of lists that may be of unequal length.
std::vector<at::Tensor> all_gather_lists(const at::Tensor& values);

}  // namespace troupe
