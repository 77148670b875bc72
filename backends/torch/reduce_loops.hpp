// SPDX-License-Identifier: Apache-2.0
// Reductions of raw memory, by element type. Written so that the compiler vectorizes them.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include <troupe/torch_collectives.hpp>

namespace troupe {

/// Calls `body` with a value of the element type.
template <class Body>
void with_type(at::ScalarType type, Body&& body) {
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, type, "troupe_reduce", [&] { body(scalar_t{}); });
}

/// to[i] = (from[0][i] + from[1][i] + ...) * scale, or the smallest or largest of them, always in that order, for
/// `count` elements from `begin` on. Halves are summed as floats; NaN wins over every number. `to` may be one of
/// `from`.
template <class T, class Sources>
void reduce_in_order(T* to, const Sources& from, std::size_t begin, std::size_t count, train::torch::Reduce reduce,
                     double scale) {
  using Sum = std::conditional_t<std::is_same_v<T, double> || std::is_integral_v<T>, T, float>;
  constexpr std::size_t block = 1024;
  Sum sums[block];
  for (std::size_t at = begin; at < begin + count; at += block) {
    const auto length = std::min(block, begin + count - at);
    const auto fold = [&](auto&& combine) {
      for (std::size_t source = 1; source < from.size(); ++source) {
        const T* next = from[source] + at;
        for (std::size_t i = 0; i < length; ++i) sums[i] = combine(sums[i], static_cast<Sum>(next[i]));
      }
    };
    const T* first = from[0] + at;
    for (std::size_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(first[i]);
    if (reduce == train::torch::Reduce::min)
      fold([](Sum a, Sum b) { return b < a || b != b ? b : a; });
    else if (reduce == train::torch::Reduce::max)
      fold([](Sum a, Sum b) { return b > a || b != b ? b : a; });
    else
      fold([](Sum a, Sum b) { return static_cast<Sum>(a + b); });
    if constexpr (!std::is_integral_v<T>)
      if (scale != 1.0)
        for (std::size_t i = 0; i < length; ++i) sums[i] *= static_cast<Sum>(scale);
    for (std::size_t i = 0; i < length; ++i) to[at - begin + i] = static_cast<T>(sums[i]);
  }
}

}  // namespace troupe
