// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/sparse_reduce.hpp"

#include <ATen/Functions.h>

#include "backends/torch/gather_unequal.hpp"

namespace troupe {
namespace {

/// What a rank has of one gradient.
struct Share {
  enum Kind : std::int64_t { none, sparse, dense };
  std::int64_t kind = none;
  std::int64_t entries = 0;
  std::int64_t sparse_dims = 1;
};
constexpr std::int64_t share_fields = 3;

Share share_of(const at::Tensor& gradient) {
  if (!gradient.defined()) return {};
  if (!gradient.is_sparse()) return {Share::dense};
  return {Share::sparse, gradient._nnz(), gradient.sparse_dim()};
}

/// One list a gradient, in rank order.
std::vector<std::vector<Share>> gather_shares(Collective& collective, const std::vector<at::Tensor*>& gradients) {
  const auto count = static_cast<std::int64_t>(gradients.size());
  auto mine = at::empty({count, share_fields}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto share = share_of(*gradients[static_cast<std::size_t>(i)]);
    auto* row = mine.data_ptr<std::int64_t>() + i * share_fields;
    row[0] = share.kind;
    row[1] = share.entries;
    row[2] = share.sparse_dims;
  }
  std::vector<std::vector<Share>> shares(gradients.size());
  for (const auto& rows : collective.all_gather_values(mine)) {
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const auto* row = rows.data_ptr<std::int64_t>() + i * share_fields;
      shares[i].push_back({row[0], row[1], row[2]});
    }
  }
  return shares;
}

at::Tensor sum_sparse(Collective& collective, const at::Tensor& gradient, const at::Tensor& like,
                      const std::vector<Share>& shares, std::int64_t sparse_dims, double scale) {
  std::vector<std::int64_t> entries;
  for (const auto& share : shares) entries.push_back(share.entries);
  const auto gather = [&](const at::Tensor& mine, std::int64_t dim) {
    return at::cat(
        gather_unequal(mine, dim, entries, [&](const auto& padded) { return collective.all_gather(padded); }), dim);
  };
  at::Tensor indices;
  at::Tensor values;
  if (gradient.defined()) {
    indices = gradient._indices();
    values = gradient._values();
  } else {
    auto shape = like.sizes().slice(static_cast<std::size_t>(sparse_dims)).vec();
    shape.insert(shape.begin(), 0);
    indices = at::empty({sparse_dims, 0}, like.options().dtype(at::kLong));
    values = at::empty(shape, like.options());
  }
  indices = gather(indices, 1);
  values = gather(values, 0);
  // Equal input on all ranks, summed in rank order: equal bits.
  auto sum = at::sparse_coo_tensor(indices, values, like.sizes(), like.options().layout(at::kSparse)).coalesce();
  sum._values().mul_(scale);
  return sum;
}

at::Tensor sum_dense(Collective& collective, const at::Tensor& gradient, const at::Tensor& like, double scale) {
  auto dense = !gradient.defined()    ? at::zeros(like.sizes(), like.options())
               : gradient.is_sparse() ? gradient.to_dense()
                                      : gradient.clone();
  collective.all_reduce(dense);
  return dense.mul_(scale);
}

}  // namespace

void reduce_sparse(Collective& collective, const std::vector<at::Tensor*>& gradients,
                   const std::vector<at::Tensor>& likes, double scale) {
  if (gradients.empty()) return;
  for (auto* gradient : gradients)
    if (gradient->defined() && gradient->is_sparse()) *gradient = gradient->coalesce();
  const auto shares = gather_shares(collective, gradients);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    bool dense = false;
    std::int64_t sparse_dims = 0;
    for (const auto& share : shares[i]) {
      if (share.kind == Share::none) continue;
      dense = dense || share.kind == Share::dense || (sparse_dims != 0 && sparse_dims != share.sparse_dims);
      sparse_dims = share.sparse_dims;
    }
    if (sparse_dims == 0) continue;  // nobody has one
    *gradients[i] = dense ? sum_dense(collective, *gradients[i], likes[i], scale)
                          : sum_sparse(collective, *gradients[i], likes[i], shares[i], sparse_dims, scale);
  }
}

}  // namespace troupe
