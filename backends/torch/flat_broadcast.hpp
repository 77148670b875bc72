// SPDX-License-Identifier: Apache-2.0
// Tensors of any types that go from one rank to all in one operation.
#pragma once

#include <utility>
#include <vector>

#include "backends/torch/collective.hpp"

namespace troupe {

class FlatBroadcast {
public:
  explicit FlatBroadcast(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}
  /// Collective. The tensors of all ranks get the root's values.
  void run(Collective& collective, int root);

private:
  std::vector<at::Tensor> tensors_;
  at::Tensor bytes_;  // all of them, one after the other
};

}  // namespace troupe
