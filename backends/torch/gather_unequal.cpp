// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/gather_unequal.hpp"

#include <ATen/Functions.h>

#include <algorithm>

#include "backends/torch/torch_group.hpp"

namespace troupe {

std::vector<at::Tensor> gather_unequal(const at::Tensor& mine, std::int64_t dim,
                                       const std::vector<std::int64_t>& lengths,
                                       const std::function<std::vector<at::Tensor>(const at::Tensor&)>& gather) {
  auto shape = mine.sizes().vec();
  auto& longest = shape[static_cast<std::size_t>(dim)];
  longest = *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0) return std::vector<at::Tensor>(lengths.size(), mine);
  const auto padded = at::zeros(shape, mine.options());
  padded.narrow(dim, 0, mine.size(dim)).copy_(mine);
  auto all = gather(padded);
  for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = all[rank].narrow(dim, 0, lengths[rank]);
  return all;
}

std::vector<at::Tensor> all_gather_lists(const at::Tensor& values) {
  std::vector<std::int64_t> lengths;
  for (const auto& length : all_gather_values(at::full({1}, values.numel(), at::kLong)))
    lengths.push_back(length.item<std::int64_t>());
  return gather_unequal(values, 0, lengths, [](const at::Tensor& padded) { return all_gather_values(padded); });
}

}  // namespace troupe
