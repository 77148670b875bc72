// SPDX-License-Identifier: Apache-2.0
// What an optimizer remembers of its parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace torch::optim {
class Optimizer;
}

namespace troupe {

/// Calls `visit` for each tensor of the state, in the order of the parameters. Throws as state_dict().
void for_each_state_tensor(const ::torch::optim::Optimizer& optimizer,
                           const std::function<void(const at::Tensor&)>& visit);

}  // namespace troupe
