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
    next->wait_for_all(summed);
    launch_ready();
  }
}

HierarchicalBuffer::HierarchicalBuffer(std::shared_ptr<ShmGroup> local, GlooCollective* between,
                                       std::shared_ptr<LaunchOrder> order, std::int64_t elements, at::ScalarType type)
    : local_(std::move(local)),
      order_(std::move(order)),
      type_(type),
      bytes_(static_cast<std::size_t>(elements) * c10::elementSize(type)),
      // A line behind each part, for the counters of where its member has come to.
      region_(local_->make_region(round_up(bytes_, cache_line) + cache_line)) {
  // The tensor keeps the memory: gradients may outlive the group.
  tensor_ = at::from_blob(
      region_->part(local_->rank()), {elements}, [memory = region_->memory()](void*) {}, at::TensorOptions(type));
  if (between) between_hosts(*local_, [&] { between_ = between->make_buffer_over(tensor_); });
}

ShmGroup::Counter& HierarchicalBuffer::came(int member, std::size_t step) const {
  return reinterpret_cast<ShmGroup::Counter*>(region_->part(member) + round_up(bytes_, cache_line))[step];
}

void HierarchicalBuffer::arrive(std::size_t step) {
  came(local_->rank(), step).store(round_, std::memory_order_relaxed);
  local_->arrive(region_->counter(step));
}

bool HierarchicalBuffer::have_come(std::size_t step, int begin, int end) const {
  return ShmGroup::reached(region_->counter(step), round_ * static_cast<std::uint32_t>(end - begin));
}

void HierarchicalBuffer::wait(std::size_t step, int begin, int end) {
  local_->wait(region_->counter(step), round_ * static_cast<std::uint32_t>(end - begin), [&] {
    return late_members(begin, end, [&](int member) { return ShmGroup::reached(came(member, step), round_); });
  });
}

void HierarchicalBuffer::start(double scale) {
  scale_ = scale;
  round_ += 1;
  shared_ = launched_ = settled_ = false;
  if (between_) order_->add(this);
  arrive(arrived);
}

bool HierarchicalBuffer::is_summed() const { return have_come(summed, 0, local_->size()); }

/// Waits for the other ranks' gradients if they are not there yet.
void HierarchicalBuffer::sum_share() {
  if (std::exchange(shared_, true)) return;
  wait_for_all(arrived);
  // Halves are scaled before they are halves again: the sum of many may be too large for one.
  reduce_share(*local_, *region_, bytes_, type_, Reduce::sum, is_half(type_) ? scale_ : 1.0, {0});
  arrive(summed);
}

void HierarchicalBuffer::launch() {
  launched_ = true;
  between_hosts(*local_, [&] { between_->start(is_half(type_) ? 1.0 : scale_); });
}

void HierarchicalBuffer::publish() {
  if (std::exchange(settled_, true)) return;
  between_hosts(*local_, [&] { between_->finish(); });
  arrive(published);
}

void HierarchicalBuffer::take() {
  if (std::exchange(settled_, true)) return;
  wait(published, 0, 1);
  copy_bytes(region_->part(local_->rank()), region_->part(0), bytes_);
  arrive(taken);
}

void HierarchicalBuffer::poke() {
  if (have_come(arrived, 0, local_->size())) sum_share();
  if (between_) {
    order_->launch_ready();
    if (launched_ && between_->is_complete()) publish();
  } else if (have_come(published, 0, 1)) {
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
  wait(taken, 1, local_->size());
}

}  // namespace troupe
