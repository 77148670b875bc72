// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "checkpoint/crc32c.hpp"

using troupe::detail::crc32c;
using troupe::detail::crc32c_portable;

DOCTEST_TEST_CASE("CRC32C gives the values of its specification") {
  const std::string_view digits = "123456789";
  const std::string zeros(32, '\0');
  const std::string ones(32, '\xff');
  for (auto* function : {&crc32c, &crc32c_portable}) {
    DOCTEST_CHECK(function(digits.data(), digits.size(), 0) == 0xe3069283);
    DOCTEST_CHECK(function(zeros.data(), zeros.size(), 0) == 0x8a9136aa);
    DOCTEST_CHECK(function(ones.data(), ones.size(), 0) == 0x62a8ab43);
    DOCTEST_CHECK(function(nullptr, 0, 0) == 0);
  }
}

DOCTEST_TEST_CASE("the instruction and the table agree on every length, at every alignment, in pieces") {
  std::mt19937 random(1);
  std::string bytes(100'000, '\0');
  for (auto& byte : bytes) byte = static_cast<char>(random());
  const auto check = [&](std::size_t start, std::size_t size) {
    const auto expected = crc32c_portable(bytes.data() + start, size);
    if (crc32c(bytes.data() + start, size) != expected) return false;
    const auto half = size / 3;
    return crc32c(bytes.data() + start + half, size - half, crc32c(bytes.data() + start, half)) == expected;
  };
  for (std::size_t size = 0; size < 2000; ++size) DOCTEST_REQUIRE(check(size % 9, size));
  for (const std::size_t size : {24'575, 24'576, 24'577, 25'344, 49'152, 98'304, 99'999}) DOCTEST_CHECK(check(1, size));
}
