// SPDX-License-Identifier: Apache-2.0
#include "backends/block_cache.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <utility>

using troupe::BlockCache;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

}  // namespace

DOCTEST_TEST_CASE("a block that was given back serves the next one of its size") {
  BlockCache cache;
  for (std::size_t bytes : {std::size_t{100} << 10, 3 * mib, 70 * mib}) {
    void* first = cache.allocate(bytes);
    std::memset(first, 1, bytes);
    cache.deallocate(first);
    DOCTEST_CHECK(cache.kept() >= bytes);
    void* second = cache.allocate(bytes - 10);
    DOCTEST_CHECK(second == first);
    DOCTEST_CHECK(cache.in_use() >= bytes);
    cache.deallocate(second);
    cache.trim();
    DOCTEST_CHECK(cache.kept() == 0);
    DOCTEST_CHECK(cache.in_use() == 0);
  }
}

DOCTEST_TEST_CASE("small blocks are not kept, and every block is aligned") {
  BlockCache cache;
  for (std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{4096}, 1 * mib, 5 * mib}) {
    void* data = cache.allocate(bytes);
    DOCTEST_CHECK(reinterpret_cast<std::uintptr_t>(data) % BlockCache::alignment == 0);
    cache.deallocate(data);
  }
  cache.deallocate(nullptr);
  cache.trim();
  cache.deallocate(cache.allocate(1000));
  DOCTEST_CHECK(cache.kept() == 0);
}

DOCTEST_TEST_CASE("a block is at most an eighth larger than what was asked for") {
  for (std::size_t bytes = BlockCache::smallest_kept; bytes < 100 * mib; bytes = bytes * 9 / 8 + 1234) {
    DOCTEST_CHECK(BlockCache::block_bytes(bytes) >= bytes + BlockCache::alignment);
    DOCTEST_CHECK(BlockCache::block_bytes(bytes) <= bytes + bytes / 8 + 4096 + BlockCache::alignment);
  }
}

DOCTEST_TEST_CASE("a peak of long ago is no reason to keep memory") {
  BlockCache cache;
  cache.deallocate(cache.allocate(300 * mib));
  DOCTEST_CHECK(cache.kept() >= 300 * mib);
  for (int i = 0; i < 10000; ++i) cache.deallocate(cache.allocate(1 * mib));
  DOCTEST_CHECK(cache.kept() < 80 * mib);
}

DOCTEST_TEST_CASE("blocks of sizes that are not needed any more make room for others") {
  BlockCache cache;
  const auto use = [&](std::size_t bytes) {
    void* one = cache.allocate(bytes);
    void* other = cache.allocate(bytes);
    const auto taken = cache.in_use() + cache.kept();
    cache.deallocate(one);
    cache.deallocate(other);
    return taken;
  };
  for (std::size_t bytes = 100 * mib; bytes < 150 * mib; bytes += 17 * mib) DOCTEST_CHECK(use(bytes) < 400 * mib);
  void* kept = cache.allocate(134 * mib);  // the size of the last ones: they, not older ones, were kept
  DOCTEST_CHECK(cache.kept() >= 134 * mib);
  cache.deallocate(kept);
}

DOCTEST_TEST_CASE("more than there is ends in bad_alloc") {
  BlockCache cache;
  DOCTEST_CHECK_THROWS_AS(cache.allocate(std::numeric_limits<std::size_t>::max()), std::bad_alloc);
  DOCTEST_CHECK_THROWS_AS(cache.allocate(std::size_t{1} << 60), std::bad_alloc);
}

DOCTEST_TEST_CASE("blocks in use never overlap") {
  BlockCache cache;
  std::mt19937 random(7);  // NOLINT: the same every time
  std::vector<std::pair<unsigned char*, std::size_t>> blocks;
  for (int i = 0; i < 3000; ++i) {
    if (blocks.size() < 30 && random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % (random() % 10 == 0 ? 4 * mib : 200000);
      auto* data = static_cast<unsigned char*>(cache.allocate(bytes));
      data[0] = data[bytes - 1] = static_cast<unsigned char>(bytes);
      blocks.emplace_back(data, bytes);
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const auto [data, bytes] = blocks.back();
      DOCTEST_REQUIRE(data[0] == static_cast<unsigned char>(bytes));
      DOCTEST_REQUIRE(data[bytes - 1] == static_cast<unsigned char>(bytes));
      cache.deallocate(data);
      blocks.pop_back();
    }
  }
  for (const auto& block : blocks) cache.deallocate(block.first);
  DOCTEST_CHECK(cache.in_use() == 0);
}
