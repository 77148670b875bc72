// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/hierarchical_collective.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include <troupe/error.hpp>

#include "backends/torch/hierarchical_buffer.hpp"
#include "backends/torch/shm_pieces.hpp"

namespace troupe {
namespace {

int count_ranks(const HostLayout& hosts) {
  std::size_t count = 0;
  for (const auto& host : hosts) count += host.size();
  return static_cast<int>(count);
}

/// A piece of a region, which it keeps.
at::Tensor tensor_over(const ShmGroup::Region& region, std::byte* piece, std::size_t bytes, at::ScalarType type) {
  return at::from_blob(
      piece, {static_cast<std::int64_t>(bytes / c10::elementSize(type))}, [memory = region.memory()](void*) {},
      at::TensorOptions(type));
}

}  // namespace

HierarchicalCollective::HierarchicalCollective(int rank, HostLayout hosts, std::shared_ptr<ShmGroup> local,
                                               std::shared_ptr<GlooCollective> between)
    : rank_(rank),
      hosts_(std::move(hosts)),
      size_(count_ranks(hosts_)),
      local_(std::move(local)),
      between_(std::move(between)),
      stage_(local_->make_region(stage_bytes)),
      order_(std::make_shared<LaunchOrder>()) {}

void HierarchicalCollective::abort() noexcept {
  local_->abort();
  if (between_) between_->abort();
}

void HierarchicalCollective::wait_for_all(const Operation& operation) {
  enter(true, operation);
  local_->barrier();  // the leader comes when all hosts are there
}

void HierarchicalCollective::enter(bool first, const Operation& operation) {
  if (!first) return local_->barrier();
  if (!local_->barrier(operation.words())) Operation::require_equal(local_->notes(), local_->members(), rank_);
  if (is_leader()) between_hosts(*local_, [&] { between_->agree(operation); });
}

void HierarchicalCollective::reduce_flat(const at::Tensor& flat, Reduce reduce, double scale,
                                         const Operation& operation) {
  local_->check_in_step();
  if (is_half(flat.scalar_type()) && reduce == Reduce::sum) {  // the sum of a host may be too large for a half
    const auto wide = flat.to(at::kFloat);
    reduce_flat(wide, reduce, scale, operation);
    flat.copy_(wide);
    return;
  }
  for_each_piece(flat.nbytes(), [&](std::size_t at, std::size_t bytes) {
    copy_bytes(stage_->part(local_->rank()), bytes_of(flat) + at, bytes);
    enter(at == 0, operation);
    reduce_share(*local_, *stage_, bytes, flat.scalar_type(), reduce, 1.0, {0});
    local_->barrier();
    if (is_leader() && bytes > 0)
      between_hosts(*local_, [&] {
        between_->reduce(tensor_over(*stage_, stage_->part(0), bytes, flat.scalar_type()), reduce, scale);
      });
    local_->barrier();
    copy_bytes(bytes_of(flat) + at, stage_->part(0), bytes);
    local_->barrier();
  });
}

void HierarchicalCollective::broadcast_flat(const at::Tensor& flat, int root, const Operation& operation) {
  local_->check_in_step();
  const auto host = std::find_if(hosts_.begin(), hosts_.end(), [&](const auto& ranks) {
    return std::find(ranks.begin(), ranks.end(), root) != ranks.end();
  });
  const int root_host = static_cast<int>(host - hosts_.begin());
  for_each_piece(flat.nbytes(), [&](std::size_t at, std::size_t bytes) {
    if (rank_ == root) copy_bytes(stage_->part(0), bytes_of(flat) + at, bytes);
    enter(at == 0, operation);
    if (is_leader() && bytes > 0)
      between_hosts(*local_,
                    [&] { between_->send_to_all(tensor_over(*stage_, stage_->part(0), bytes, at::kByte), root_host); });
    local_->barrier();
    if (rank_ != root) copy_bytes(bytes_of(flat) + at, stage_->part(0), bytes);
    local_->barrier();
  });
}

void HierarchicalCollective::gather_flat(const at::Tensor& flat, const std::vector<at::Tensor>& all,
                                         const Operation& operation) {
  local_->check_in_step();
  // Room for a piece of every rank, host after host; made when all are known to want it.
  const bool agreed = !gathered_;
  if (!gathered_) {
    wait_for_all(operation);
    const auto per_member = stage_bytes * static_cast<std::size_t>(size_) / static_cast<std::size_t>(local_->size());
    gathered_ = local_->make_region(per_member + stage_bytes);
  }
  std::vector<std::size_t> places(static_cast<std::size_t>(size_));
  std::size_t next = 0;
  for (const auto& host : hosts_)
    for (int rank : host) places[static_cast<std::size_t>(rank)] = next++;
  for_each_piece(flat.nbytes(), [&](std::size_t at, std::size_t bytes) {
    const auto place_of = [&](int rank) { return gathered_->part(0) + places[static_cast<std::size_t>(rank)] * bytes; };
    copy_bytes(place_of(rank_), bytes_of(flat) + at, bytes);
    enter(at == 0 && !agreed, operation);
    if (is_leader() && bytes > 0)
      between_hosts(*local_, [&] {
        for (std::size_t host = 0; host < hosts_.size(); ++host)
          between_->send_to_all(
              tensor_over(*gathered_, place_of(hosts_[host].front()), bytes * hosts_[host].size(), at::kByte),
              static_cast<int>(host));
      });
    local_->barrier();
    for (int rank = 0; rank < size_; ++rank)
      copy_bytes(bytes_of(all[static_cast<std::size_t>(rank)]) + at, place_of(rank), bytes);
    local_->barrier();
  });
}

void HierarchicalCollective::separate_buffers() {
  enter(true, Operation(Operation::Kind::begin_buffers));
  order_ = std::make_shared<LaunchOrder>();
  if (is_leader()) between_->change_group();
}

std::unique_ptr<ReduceBuffer> HierarchicalCollective::make_buffer(std::int64_t elements, at::ScalarType type) {
  enter(true, Operation(Operation::Kind::make_buffer, type, {elements}));
  return std::make_unique<HierarchicalBuffer>(local_, between_.get(), order_, elements, type);
}

}  // namespace troupe
