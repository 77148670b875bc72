// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/hierarchical_buffer.hpp"

#include <ATen/Functions.h>

#include <utility>

#include "backends/torch/shm_pieces.hpp"

namespace troupe {
namespace {

// The counters of a buffer's region: one step each of every rank (published: of the leader; taken: of the others).
constexpr std::size_t arrived = 0;
constexpr std::size_t summed = 1;
constexpr std::size_t published = 2;
constexpr std::size_t taken = 3;

}  // namespace

void LaunchOrder::launch_ready() {
  while (!waiting_.empty() && waiting_.front()->is_summed()) {
    waiting_.front()->launch();
    waiting_.pop_front();
  }
}

void LaunchOrder::launch_until(HierarchicalBuffer* buffer) {
  while (!buffer->launched_) {
    auto* next = waiting_.front();
    next->sum_share();
    next->local_->wait(next->region_->counter(summed), next->round_ * static_cast<std::uint32_t>(next->local_->size()));
    launch_ready();
  }
}

HierarchicalBuffer::HierarchicalBuffer(std::shared_ptr<ShmGroup> local, GlooCollective* between,
                                       std::shared_ptr<LaunchOrder> order, std::int64_t elements, at::ScalarType type)
    : local_(std::move(local)),
      order_(std::move(order)),
      type_(type),
      bytes_(static_cast<std::size_t>(elements) * c10::elementSize(type)),
      region_(local_->make_region(bytes_)) {
  // The tensor keeps the memory: gradients may outlive the group.
  tensor_ = at::from_blob(
      region_->part(local_->rank()), {elements}, [memory = region_->memory()](void*) {}, at::TensorOptions(type));
  if (between) between_ = between->make_buffer_over(tensor_);
}

void HierarchicalBuffer::start(double scale) {
  scale_ = scale;
  round_ += 1;
  shared_ = launched_ = settled_ = false;
  if (between_) order_->add(this);
  local_->arrive(region_->counter(arrived));
}

bool HierarchicalBuffer::is_summed() const {
  return ShmGroup::reached(region_->counter(summed), round_ * static_cast<std::uint32_t>(local_->size()));
}

/// Waits for the other ranks' gradients if they are not there yet.
void HierarchicalBuffer::sum_share() {
  if (std::exchange(shared_, true)) return;
  local_->wait(region_->counter(arrived), round_ * static_cast<std::uint32_t>(local_->size()));
  // Halves are scaled before they are halves again: the sum of many may be too large for one.
  reduce_share(*local_, *region_, bytes_, type_, Reduce::sum, is_half(type_) ? scale_ : 1.0, {0});
  local_->arrive(region_->counter(summed));
}

void HierarchicalBuffer::launch() {
  launched_ = true;
  between_->start(is_half(type_) ? 1.0 : scale_);
}

void HierarchicalBuffer::publish() {
  if (std::exchange(settled_, true)) return;
  between_->finish();
  local_->arrive(region_->counter(published));
}

void HierarchicalBuffer::take() {
  if (std::exchange(settled_, true)) return;
  local_->wait(region_->counter(published), round_);
  copy_bytes(region_->part(local_->rank()), region_->part(0), bytes_);
  local_->arrive(region_->counter(taken));
}

void HierarchicalBuffer::poke() {
  if (ShmGroup::reached(region_->counter(arrived), round_ * static_cast<std::uint32_t>(local_->size()))) sum_share();
  if (between_) {
    order_->launch_ready();
    if (launched_ && between_->is_complete()) publish();
  } else if (ShmGroup::reached(region_->counter(published), round_)) {
    take();
  }
}

void HierarchicalBuffer::contribute() {
  sum_share();
  if (between_) order_->launch_ready();
}

void HierarchicalBuffer::finish() {
  contribute();
  if (!between_) return take();
  order_->launch_until(this);
  publish();
  // Until then the others read the leader's part.
  local_->wait(region_->counter(taken), round_ * static_cast<std::uint32_t>(local_->size() - 1));
}

}  // namespace troupe
