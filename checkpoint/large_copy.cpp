// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/large_copy.hpp"

#include <cstdint>
#include <cstring>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace troupe::detail {

#ifdef __x86_64__

namespace {

constexpr std::size_t line = 64;
constexpr std::size_t large = std::size_t{64} << 10;

/// One line of the cache.
void stream_line(std::byte* destination, const std::byte* source) {
  const auto* from = reinterpret_cast<const __m128i*>(source);
  auto* to = reinterpret_cast<__m128i*>(destination);
  const auto first = _mm_loadu_si128(from);
  const auto second = _mm_loadu_si128(from + 1);
  const auto third = _mm_loadu_si128(from + 2);
  const auto fourth = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, first);
  _mm_stream_si128(to + 1, second);
  _mm_stream_si128(to + 2, third);
  _mm_stream_si128(to + 3, fourth);
}

}  // namespace

void copy_large(std::byte* destination, const std::byte* source, std::size_t size) {
  if (size >= large) {
    const auto head = (line - reinterpret_cast<std::uintptr_t>(destination) % line) % line;
    std::memcpy(destination, source, head);
    std::size_t done = head;
    for (; done + line <= size; done += line) stream_line(destination + done, source + done);
    _mm_sfence();  // whoever is told of the copy sees it
    destination += done;
    source += done;
    size -= done;
  }
  if (size > 0) std::memcpy(destination, source, size);  // memcpy() may not be given a null pointer
}

#else

void copy_large(std::byte* destination, const std::byte* source, std::size_t size) {
  if (size > 0) std::memcpy(destination, source, size);
}

#endif

}  // namespace troupe::detail
