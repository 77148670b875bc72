// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/shm_pieces.hpp"

#include <cstring>

#include "backends/torch/reduce_loops.hpp"

namespace troupe {

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void reduce_run(const std::vector<const std::byte*>& from, const std::vector<std::byte*>& to, std::size_t bytes,
                at::ScalarType type, train::torch::Reduce reduce, double scale) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    std::vector<const T*> sources;
    for (const auto* one : from) sources.push_back(reinterpret_cast<const T*>(one));
    T* first = reinterpret_cast<T*>(to.front());
    const auto count = bytes / sizeof(T);
    // Block by block, so that what was summed is still in the cache when it is written to the others.
    constexpr std::size_t block = 4096;
    for (std::size_t at = 0; at < count; at += block) {
      const auto length = std::min(block, count - at);
      reduce_in_order(first + at, sources, at, length, reduce, scale);
      for (std::size_t i = 1; i < to.size(); ++i) std::memcpy(to[i] + at * sizeof(T), first + at, length * sizeof(T));
    }
  });
}

void reduce_share(const ShmGroup& group, const ShmGroup::Region& region, std::size_t bytes, at::ScalarType type,
                  train::torch::Reduce reduce, double scale, const std::vector<int>& targets) {
  // Shares begin at cache lines: two ranks never write the same one.
  const auto members = static_cast<std::size_t>(group.size());
  const auto share = (bytes / members + cache_line) / cache_line * cache_line;
  const auto begin = std::min(bytes, share * static_cast<std::size_t>(group.rank()));
  const auto end = std::min(bytes, begin + share);
  std::vector<const std::byte*> from;
  for (int member = 0; member < group.size(); ++member) from.push_back(region.part(member) + begin);
  std::vector<std::byte*> to;
  for (int target : targets) to.push_back(region.part(target) + begin);
  reduce_run(from, to, end - begin, type, reduce, scale);
}

}  // namespace troupe
