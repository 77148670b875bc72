// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/shm_pieces.hpp"

#include <cstring>

#include "backends/torch/reduce_loops.hpp"

namespace troupe {

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void reduce_share(const ShmGroup& group, const ShmGroup::Region& region, std::size_t bytes, at::ScalarType type,
                  train::torch::Reduce reduce, double scale, const std::vector<int>& targets) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto count = bytes / sizeof(T);
    const auto members = static_cast<std::size_t>(group.size());
    // Shares begin at cache lines: two ranks never write the same one.
    const auto line = 64 / sizeof(T);
    const auto share = (count / members + line) / line * line;
    const auto begin = std::min(count, share * static_cast<std::size_t>(group.rank()));
    const auto end = std::min(count, begin + share);
    const auto part = [&](int member) { return reinterpret_cast<T*>(region.part(member)); };
    std::vector<const T*> from;
    for (int member = 0; member < group.size(); ++member) from.push_back(part(member));
    // Block by block, so that what was summed is still in the cache when it is written to the others.
    constexpr std::size_t block = 4096;
    T* first = part(targets.front());
    for (auto at = begin; at < end; at += block) {
      const auto length = std::min(block, end - at);
      reduce_in_order(first + at, from, at, length, reduce, scale);
      for (std::size_t i = 1; i < targets.size(); ++i)
        std::memcpy(part(targets[i]) + at, first + at, length * sizeof(T));
    }
  });
}

}  // namespace troupe
