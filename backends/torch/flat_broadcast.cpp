// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/flat_broadcast.hpp"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace troupe {

void FlatBroadcast::run(Collective& collective, int root) {
  if (tensors_.empty()) return;
  at::NoGradGuard no_grad;
  if (!bytes_.defined()) {
    std::int64_t total = 0;
    for (const auto& tensor : tensors_) total += static_cast<std::int64_t>(tensor.nbytes());
    bytes_ = at::empty({total}, tensors_.front().options().dtype(at::kByte));
  }
  const auto for_each_piece = [this](auto&& visit) {
    std::int64_t offset = 0;
    for (auto& tensor : tensors_) {
      const auto length = static_cast<std::int64_t>(tensor.nbytes());
      visit(tensor, bytes_.narrow(0, offset, length));
      offset += length;
    }
  };
  if (collective.rank() == root)
    for_each_piece([](at::Tensor& tensor, at::Tensor piece) {
      if (tensor.numel() > 0) piece.copy_(tensor.variable_data().contiguous().reshape({-1}).view(at::kByte));
    });
  collective.broadcast(bytes_, root);
  if (collective.rank() != root)
    for_each_piece([](at::Tensor& tensor, const at::Tensor& piece) {
      if (tensor.numel() == 0) return;
      // Cloned, since a piece may begin anywhere and other types want alignment. variable_data(): a graph that is kept
      // for a second backward() must not see this as a change.
      tensor.variable_data().copy_(piece.clone().view(tensor.scalar_type()).view(tensor.sizes()));
    });
}

}  // namespace troupe
