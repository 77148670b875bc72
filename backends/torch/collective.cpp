// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/collective.hpp"

#include <ATen/Functions.h>

#include <fmt/format.h>
#include <troupe/error.hpp>

namespace troupe {

at::Tensor Collective::reduce_scatter(const at::Tensor& tensor) {
  if (tensor.dim() == 0 || tensor.size(0) % size() != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("reduce_scatter() needs a first dimension that {} ranks can share equally", size()));
  auto sum = tensor.clone();
  all_reduce(sum, 1.0);
  return sum.chunk(size(), 0)[static_cast<std::size_t>(rank())].clone();
}

}  // namespace troupe
