// SPDX-License-Identifier: Apache-2.0
// Reductions of raw memory, by element type. Written so that the compiler vectorizes them.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include <troupe/torch_collectives.hpp>

// Before a loop: no iteration needs what another one writes.
#ifdef __clang__
#define TROUPE_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define TROUPE_IVDEP _Pragma("GCC ivdep")
#endif

namespace troupe {

/// Calls `body` with a value of the element type.
template <class Body>
void with_type(at::ScalarType type, Body&& body) {
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, type, "troupe_reduce", [&] { body(scalar_t{}); });
}

namespace detail {

/// Elements that are reduced at a time: partial results stay in the first cache.
constexpr std::size_t reduce_block = 1024;

/// One block. `Length` is a constant for all blocks but the last: at -O2 a loop of unknown length is not vectorized,
/// which makes it five times slower. IVDEP: `to` may be one of the sources, but element by element.
template <class T, class Sum, class Sources, class Length, class Combine>
void reduce_one_block(T* to, const Sources& from, std::size_t at, Length length, Combine combine, Sum scale) {
  const std::size_t count = length;
  const auto finish = [=](Sum value) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(value);
    else
      return static_cast<T>(value * scale);
  };
  const T* first = from[0] + at;
  if (from.size() == 2) {
    const T* second = from[1] + at;
    TROUPE_IVDEP
    for (std::size_t i = 0; i < count; ++i)
      to[i] = finish(combine(static_cast<Sum>(first[i]), static_cast<Sum>(second[i])));
    return;
  }
  Sum values[reduce_block];
  TROUPE_IVDEP
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<Sum>(first[i]);
  for (std::size_t source = 1; source < from.size(); ++source) {
    const T* next = from[source] + at;
    TROUPE_IVDEP
    for (std::size_t i = 0; i < count; ++i) values[i] = combine(values[i], static_cast<Sum>(next[i]));
  }
  TROUPE_IVDEP
  for (std::size_t i = 0; i < count; ++i) to[i] = finish(values[i]);
}

template <class T, class Sum, class Sources, class Combine>
void reduce_blocks(T* to, const Sources& from, std::size_t begin, std::size_t count, Combine combine, Sum scale) {
  std::size_t done = 0;
  for (; done + reduce_block <= count; done += reduce_block)
    reduce_one_block(to + done, from, begin + done, std::integral_constant<std::size_t, reduce_block>(), combine,
                     scale);
  if (done < count) reduce_one_block(to + done, from, begin + done, count - done, combine, scale);
}

}  // namespace detail

/// to[i] = (from[0][i] + from[1][i] + ...) * scale, or the smallest or largest of them, always in that order, for
/// `count` elements from `begin` on. Halves are summed as floats; NaN wins over every number. `to` may be one of
/// `from`. Integers are not scaled.
template <class T, class Sources>
void reduce_in_order(T* to, const Sources& from, std::size_t begin, std::size_t count, train::torch::Reduce reduce,
                     double scale) {
  using Sum = std::conditional_t<std::is_same_v<T, double> || std::is_integral_v<T>, T, float>;
  const auto run = [&](auto combine) {
    detail::reduce_blocks(to, from, begin, count, combine, static_cast<Sum>(scale));
  };
  if (reduce == train::torch::Reduce::min)
    run([](Sum a, Sum b) { return b < a || b != b ? b : a; });
  else if (reduce == train::torch::Reduce::max)
    run([](Sum a, Sum b) { return b > a || b != b ? b : a; });
  else
    run([](Sum a, Sum b) { return static_cast<Sum>(a + b); });
}

}  // namespace troupe
