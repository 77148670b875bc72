// SPDX-License-Identifier: Apache-2.0
// Sums of raw memory, by element type. Written so that the compiler vectorizes them.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <type_traits>

namespace troupe {

/// to[i] = (from[0][i] + from[1][i] + ...) * scale, always in that order, for `count` elements from `begin` on. Halves
/// are summed as floats. `to` may be one of `from`.
template <class T, class Sources>
void sum_in_order(T* to, const Sources& from, std::size_t begin, std::size_t count, double scale) {
  using Sum = std::conditional_t<std::is_same_v<T, double> || std::is_integral_v<T>, T, float>;
  constexpr std::size_t block = 1024;
  Sum sums[block];
  for (std::size_t at = begin; at < begin + count; at += block) {
    const auto length = std::min(block, begin + count - at);
    const T* first = from[0] + at;
    for (std::size_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(first[i]);
    for (std::size_t source = 1; source < from.size(); ++source) {
      const T* next = from[source] + at;
      for (std::size_t i = 0; i < length; ++i) sums[i] += static_cast<Sum>(next[i]);
    }
    if (scale != 1.0) {
      if constexpr (std::is_integral_v<T>)
        for (std::size_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(static_cast<double>(sums[i]) * scale);
      else
        for (std::size_t i = 0; i < length; ++i) sums[i] *= static_cast<Sum>(scale);
    }
    for (std::size_t i = 0; i < length; ++i) to[at - begin + i] = static_cast<T>(sums[i]);
  }
}

}  // namespace troupe
