// SPDX-License-Identifier: Apache-2.0
// The sum of sparse gradients over all ranks, which stays sparse.
#pragma once

#include <vector>

#include "backends/torch/collective.hpp"

namespace troupe {

/// Replaces each gradient by the sum over all ranks times `scale`. A rank may have none (an undefined tensor); one that
/// no rank has stays so. If a rank's gradient is dense, the sum is. `likes` gives shapes, types and devices.
/// Collective.
void reduce_sparse(Collective& collective, const std::vector<at::Tensor*>& gradients,
                   const std::vector<at::Tensor>& likes, double scale);

}  // namespace troupe
