// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/large_copy.hpp"

#include <doctest/doctest.h>

#include <vector>

using troupe::detail::copy_large;

DOCTEST_TEST_CASE("copies of every size and alignment are exact and touch nothing else") {
  constexpr std::size_t most = (std::size_t{1} << 20) + 200;
  constexpr std::byte untouched{0xee};
  std::vector<std::byte> source(most + 64);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + (i >> 8));
  std::vector<std::byte> destination;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, most - 200, most - 137, most})
    for (const std::size_t from : {0, 1, 17})
      for (const std::size_t to : {0, 1, 16, 63}) {
        DOCTEST_CAPTURE(size);
        destination.assign(size + 128, untouched);
        copy_large(destination.data() + to, source.data() + from, size);
        bool exact = true;
        for (std::size_t i = 0; i < destination.size(); ++i) {
          const bool inside = i >= to && i < to + size;
          exact = exact && destination[i] == (inside ? source[i - to + from] : untouched);
        }
        DOCTEST_CHECK(exact);
      }
  copy_large(nullptr, nullptr, 0);
}
