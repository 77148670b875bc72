// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/shm_collective.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "backends/torch/shm_buffer.hpp"
#include "backends/torch/shm_pieces.hpp"

namespace troupe {
ShmCollective::ShmCollective(std::shared_ptr<ShmGroup> group)
    : group_(std::move(group)), stage_(group_->make_region(stage_bytes)), everybody_(static_cast<std::size_t>(size())) {
  std::iota(everybody_.begin(), everybody_.end(), 0);
  std::rotate(everybody_.begin(), everybody_.begin() + rank(), everybody_.end());  // its own part is written first
}

void ShmCollective::wait_for_all(const Operation& operation) {
  if (!group_->barrier(operation.words()))
    Operation::require_equal(group_->notes(), group_->members(), group_->members()[static_cast<std::size_t>(rank())]);
}

void ShmCollective::reduce_flat(const at::Tensor& flat, Reduce reduce, double scale, const Operation& operation) {
  group_->check_in_step();
  for_each_piece(flat.nbytes(), [&](std::size_t at, std::size_t bytes) {
    copy_bytes(stage_->part(rank()), bytes_of(flat) + at, bytes);
    at == 0 ? wait_for_all(operation) : group_->barrier();
    reduce_share(*group_, *stage_, bytes, flat.scalar_type(), reduce, scale, everybody_);
    group_->barrier();
    copy_bytes(bytes_of(flat) + at, stage_->part(rank()), bytes);
  });
}

void ShmCollective::broadcast_flat(const at::Tensor& flat, int root, const Operation& operation) {
  group_->check_in_step();
  for_each_piece(flat.nbytes(), [&](std::size_t at, std::size_t bytes) {
    if (rank() == root) copy_bytes(stage_->part(root), bytes_of(flat) + at, bytes);
    at == 0 ? wait_for_all(operation) : group_->barrier();
    if (rank() != root) copy_bytes(bytes_of(flat) + at, stage_->part(root), bytes);
    group_->barrier();
  });
}

void ShmCollective::gather_flat(const at::Tensor& flat, const std::vector<at::Tensor>& all,
                                const Operation& operation) {
  group_->check_in_step();
  for_each_piece(flat.nbytes(), [&](std::size_t at, std::size_t bytes) {
    copy_bytes(stage_->part(rank()), bytes_of(flat) + at, bytes);
    at == 0 ? wait_for_all(operation) : group_->barrier();
    for (int member = 0; member < size(); ++member)
      copy_bytes(bytes_of(all[static_cast<std::size_t>(member)]) + at, stage_->part(member), bytes);
    group_->barrier();
  });
}

std::unique_ptr<ReduceBuffer> ShmCollective::make_buffer(std::int64_t elements, at::ScalarType type) {
  wait_for_all(Operation(Operation::Kind::make_buffer, type, {elements}));
  return std::make_unique<ShmBuffer>(group_, elements, type);
}

}  // namespace troupe
