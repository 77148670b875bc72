// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/shm_collective.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/torch/reduce_loops.hpp"

namespace troupe {
namespace {

/// Fits into the cache of a core together with the parts of a few others.
constexpr std::size_t stage_bytes = std::size_t{1} << 20;

/// Calls `body(offset, bytes)` for every piece that fits into the stage; once if there is nothing.
template <class Body>
void for_each_piece(std::size_t bytes, Body&& body) {
  std::size_t at = 0;
  do {
    body(at, std::min(stage_bytes, bytes - at));
    at += stage_bytes;
  } while (at < bytes);
}

/// Of nothing too: an empty tensor has no address.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::byte* bytes_of(const at::Tensor& flat) { return static_cast<std::byte*>(flat.data_ptr()); }

/// This rank's share of reducing what every member has in its part: the result goes to all parts.
void reduce_share(const ShmGroup& group, const ShmGroup::Region& region, std::size_t bytes, at::ScalarType type,
                  Reduce reduce, double scale) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto count = bytes / sizeof(T);
    const auto members = static_cast<std::size_t>(group.size());
    // Shares begin at cache lines: two ranks never write the same one.
    const auto line = 64 / sizeof(T);
    const auto share = (count / members + line) / line * line;
    const auto begin = std::min(count, share * static_cast<std::size_t>(group.rank()));
    const auto end = std::min(count, begin + share);
    std::vector<const T*> from;
    for (int member = 0; member < group.size(); ++member) from.push_back(reinterpret_cast<T*>(region.part(member)));
    // Block by block, so that what was summed is still in the cache when it is written to the others.
    constexpr std::size_t block = 4096;
    T* mine = reinterpret_cast<T*>(region.part(group.rank()));
    for (auto at = begin; at < end; at += block) {
      const auto length = std::min(block, end - at);
      reduce_in_order(mine + at, from, at, length, reduce, scale);
      for (int member = 0; member < group.size(); ++member)
        if (member != group.rank())
          std::memcpy(reinterpret_cast<T*>(region.part(member)) + at, mine + at, length * sizeof(T));
    }
  });
}

class ShmBuffer : public ReduceBuffer {
public:
  ShmBuffer(std::shared_ptr<ShmGroup> group, std::int64_t elements, at::ScalarType type)
      : group_(std::move(group)),
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
    group_->arrive(region_->arrived());
  }

  void poke() override {
    if (!reduced_ && ShmGroup::reached(region_->arrived(), target_)) reduce();
  }

  void finish() override {
    group_->wait(region_->arrived(), target_);
    if (!reduced_) reduce();
    group_->wait(region_->finished(), target_);
  }

private:
  void reduce() {
    reduce_share(*group_, *region_, bytes_, type_, Reduce::sum, scale_);
    reduced_ = true;
    group_->arrive(region_->finished());
  }

  std::shared_ptr<ShmGroup> group_;
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
    : group_(std::move(group)), stage_(group_->make_region(stage_bytes)) {}

void ShmCollective::wait_for_all(const Operation& operation) {
  if (!group_->barrier(operation.words()))
    Operation::require_equal(group_->notes(), group_->members(), group_->members()[static_cast<std::size_t>(rank())]);
}

void ShmCollective::reduce_flat(const at::Tensor& flat, Reduce reduce, double scale, const Operation& operation) {
  for_each_piece(flat.nbytes(), [&](std::size_t at, std::size_t bytes) {
    copy_bytes(stage_->part(rank()), bytes_of(flat) + at, bytes);
    at == 0 ? wait_for_all(operation) : group_->barrier();
    reduce_share(*group_, *stage_, bytes, flat.scalar_type(), reduce, scale);
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
  return std::make_unique<ShmBuffer>(group_, elements, type);
}

}  // namespace troupe
