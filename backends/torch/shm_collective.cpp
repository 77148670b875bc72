// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/shm_collective.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "backends/torch/shm_pieces.hpp"

namespace troupe {
namespace {

// The counters of a buffer's region.
constexpr std::size_t arrived = 0;
constexpr std::size_t finished = 1;

class ShmBuffer : public ReduceBuffer {
public:
  ShmBuffer(std::shared_ptr<ShmGroup> group, std::int64_t elements, at::ScalarType type, std::vector<int> targets)
      : group_(std::move(group)),
        targets_(std::move(targets)),
        type_(type),
        bytes_(static_cast<std::size_t>(elements) * c10::elementSize(type)),
        region_(group_->make_region(bytes_)) {
    // The tensor keeps the memory: gradients may outlive the group.
    tensor_ = at::from_blob(
        region_->part(group_->rank()), {elements}, [memory = region_->memory()](void*) {}, at::TensorOptions(type));
  }

  at::Tensor tensor() const override { return tensor_; }

  void start(double scale) override {
    scale_ = scale;
    reduced_ = false;
    target_ += static_cast<std::uint32_t>(group_->size());
    group_->arrive(region_->counter(arrived));
  }

  void poke() override {
    if (!reduced_ && ShmGroup::reached(region_->counter(arrived), target_)) reduce();
  }

  void finish() override {
    group_->wait(region_->counter(arrived), target_);
    if (!reduced_) reduce();
    group_->wait(region_->counter(finished), target_);
  }

private:
  void reduce() {
    reduce_share(*group_, *region_, bytes_, type_, Reduce::sum, scale_, targets_);
    reduced_ = true;
    group_->arrive(region_->counter(finished));
  }

  std::shared_ptr<ShmGroup> group_;
  const std::vector<int> targets_;
  at::ScalarType type_;
  std::size_t bytes_;
  std::shared_ptr<ShmGroup::Region> region_;
  at::Tensor tensor_;
  double scale_ = 1;
  bool reduced_ = true;
  std::uint32_t target_ = 0;
};

}  // namespace

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
  for_each_piece(flat.nbytes(), [&](std::size_t at, std::size_t bytes) {
    copy_bytes(stage_->part(rank()), bytes_of(flat) + at, bytes);
    at == 0 ? wait_for_all(operation) : group_->barrier();
    reduce_share(*group_, *stage_, bytes, flat.scalar_type(), reduce, scale, everybody_);
    group_->barrier();
    copy_bytes(bytes_of(flat) + at, stage_->part(rank()), bytes);
  });
}

void ShmCollective::broadcast_flat(const at::Tensor& flat, int root, const Operation& operation) {
  for_each_piece(flat.nbytes(), [&](std::size_t at, std::size_t bytes) {
    if (rank() == root) copy_bytes(stage_->part(root), bytes_of(flat) + at, bytes);
    at == 0 ? wait_for_all(operation) : group_->barrier();
    if (rank() != root) copy_bytes(bytes_of(flat) + at, stage_->part(root), bytes);
    group_->barrier();
  });
}

void ShmCollective::gather_flat(const at::Tensor& flat, const std::vector<at::Tensor>& all,
                                const Operation& operation) {
  for_each_piece(flat.nbytes(), [&](std::size_t at, std::size_t bytes) {
    copy_bytes(stage_->part(rank()), bytes_of(flat) + at, bytes);
    at == 0 ? wait_for_all(operation) : group_->barrier();
    for (int member = 0; member < size(); ++member)
      copy_bytes(bytes_of(all[static_cast<std::size_t>(member)]) + at, stage_->part(member), bytes);
    group_->barrier();
  });
}

std::unique_ptr<ReduceBuffer> ShmCollective::make_buffer(std::int64_t elements, at::ScalarType type) {
  return std::make_unique<ShmBuffer>(group_, elements, type, everybody_);
}

}  // namespace troupe
