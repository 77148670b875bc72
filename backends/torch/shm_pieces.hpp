// SPDX-License-Identifier: Apache-2.0
// What every collective over shared memory is made of: pieces that fit into a stage, and a rank's share of a reduction.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include <troupe/torch_collectives.hpp>

#include "backends/alignment.hpp"
#include "backends/shm_group.hpp"

namespace troupe {

/// Fits into the cache of a core together with the parts of a few others.
inline constexpr std::size_t stage_bytes = std::size_t{1} << 20;

/// Members from `begin` to `end` that `has_come` does not hold for.
template <class HasCome>
std::vector<int> late_members(int begin, int end, HasCome&& has_come) {
  std::vector<int> late;
  for (int member = begin; member < end; ++member)
    if (!has_come(member)) late.push_back(member);
  return late;
}

/// Calls `body(offset, bytes)` for every piece that fits into the stage; once if there is nothing.
template <class Body>
void for_each_piece(std::size_t bytes, Body&& body) {
  std::size_t at = 0;
  do {
    body(at, std::min(stage_bytes, bytes - at));
    at += stage_bytes;
  } while (at < bytes);
}

inline std::byte* bytes_of(const at::Tensor& flat) { return static_cast<std::byte*>(flat.data_ptr()); }

/// Of nothing too: an empty tensor has no address.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);

/// Reduces runs of elements of one length, in the order of `from`, into every one of `to`. They may be the same memory.
void reduce_run(const std::vector<const std::byte*>& from, const std::vector<std::byte*>& to, std::size_t bytes,
                at::ScalarType type, train::torch::Reduce reduce, double scale);

/// This member's share of reducing what every member has in its part, in the order of the members. The result goes to
/// the parts of `targets`.
void reduce_share(const ShmGroup& group, const ShmGroup::Region& region, std::size_t bytes, at::ScalarType type,
                  train::torch::Reduce reduce, double scale, const std::vector<int>& targets);

}  // namespace troupe
