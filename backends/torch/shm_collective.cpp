// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/shm_collective.hpp"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <troupe/error.hpp>

#include "backends/torch/reduce_loops.hpp"

namespace troupe {
namespace {

/// Fits into the cache of a core together with the parts of a few others.
constexpr std::size_t stage_bytes = std::size_t{1} << 20;

void require_cpu(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu())
    throw Error(ErrorCode::invalid_argument,
                "this group works on CPU tensors; this one lives on " + tensor.device().str());
}

/// Calls `body` with a value of the element type.
template <class Body>
void with_type(at::ScalarType type, Body&& body) {
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, type, "troupe_reduce", [&] { body(scalar_t{}); });
}

/// This rank's share of summing what every member has in its part: the result goes to all parts.
void reduce_share(const ShmGroup& group, const ShmGroup::Region& region, std::size_t bytes, at::ScalarType type,
                  double scale) {
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
      sum_in_order(mine + at, from, at, length, scale);
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
    reduce_share(*group_, *region_, bytes_, type_, scale_);
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

void ShmCollective::all_reduce(at::Tensor& tensor, double scale) {
  require_cpu(tensor);
  auto flat = tensor.contiguous();
  auto* data = static_cast<std::byte*>(flat.data_ptr());
  for (std::size_t at = 0; at < flat.nbytes(); at += stage_bytes) {
    const auto bytes = std::min(stage_bytes, flat.nbytes() - at);
    std::memcpy(stage_->part(rank()), data + at, bytes);
    group_->barrier();
    reduce_share(*group_, *stage_, bytes, flat.scalar_type(), scale);
    group_->barrier();
    std::memcpy(data + at, stage_->part(rank()), bytes);
  }
  if (!flat.is_same(tensor)) tensor.copy_(flat);
}

void ShmCollective::broadcast(at::Tensor& tensor, int root) {
  require_cpu(tensor);
  auto flat = tensor.contiguous();
  auto* data = static_cast<std::byte*>(flat.data_ptr());
  for (std::size_t at = 0; at < flat.nbytes(); at += stage_bytes) {
    const auto bytes = std::min(stage_bytes, flat.nbytes() - at);
    if (rank() == root) std::memcpy(stage_->part(root), data + at, bytes);
    group_->barrier();
    if (rank() != root) std::memcpy(data + at, stage_->part(root), bytes);
    group_->barrier();
  }
  if (rank() != root && !flat.is_same(tensor)) tensor.copy_(flat);
}

std::vector<at::Tensor> ShmCollective::all_gather(const at::Tensor& tensor) {
  require_cpu(tensor);
  auto flat = tensor.contiguous();
  std::vector<at::Tensor> gathered;
  for (int member = 0; member < size(); ++member) gathered.push_back(at::empty_like(flat));
  const auto* data = static_cast<const std::byte*>(flat.data_ptr());
  for (std::size_t at = 0; at < flat.nbytes(); at += stage_bytes) {
    const auto bytes = std::min(stage_bytes, flat.nbytes() - at);
    std::memcpy(stage_->part(rank()), data + at, bytes);
    group_->barrier();
    for (int member = 0; member < size(); ++member)
      std::memcpy(static_cast<std::byte*>(gathered[static_cast<std::size_t>(member)].data_ptr()) + at,
                  stage_->part(member), bytes);
    group_->barrier();
  }
  return gathered;
}

std::unique_ptr<ReduceBuffer> ShmCollective::make_buffer(std::int64_t elements, at::ScalarType type) {
  return std::make_unique<ShmBuffer>(group_, elements, type);
}

}  // namespace troupe
