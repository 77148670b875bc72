// SPDX-License-Identifier: Apache-2.0
#include "backends/block_cache.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>
#include <utility>

#include "backends/alignment.hpp"

namespace troupe {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
/// Kept beyond what was in use at most: sizes vary a little from step to step.
constexpr std::size_t spare_bytes = std::size_t{64} << 20;

/// Begins at a huge page, so that all of it but the end can be made of them.
void* map_block(std::size_t bytes) {
  const std::size_t mapped = bytes + huge_page;
  void* raw = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<char*>(raw);
  auto* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<std::uintptr_t>(begin), huge_page));
  if (aligned != begin) ::munmap(begin, static_cast<std::size_t>(aligned - begin));
  if (const auto rest = static_cast<std::size_t>(begin + mapped - (aligned + bytes)); rest > 0)
    ::munmap(aligned + bytes, rest);
  ::madvise(aligned, bytes, MADV_HUGEPAGE);  // a wish: where it is refused, small pages do
  return aligned;
}

}  // namespace

/// In front of the user's bytes.
struct alignas(BlockCache::alignment) BlockCache::Header {
  std::size_t bytes;  // of the block, with this
};

BlockCache::~BlockCache() { trim(); }

std::size_t BlockCache::block_bytes(std::size_t bytes) {
  const std::size_t wanted = round_up(bytes + sizeof(Header), alignment);
  if (wanted < smallest_kept) return wanted;
  return round_up(wanted, std::max<std::size_t>(std::bit_floor(wanted) / 8, 4096));
}

void* BlockCache::allocate(std::size_t bytes) {
  if (bytes > (std::size_t{1} << 62)) throw std::bad_alloc();
  const std::size_t size = block_bytes(bytes);
  const bool is_kept = size >= smallest_kept;
  if (is_kept) {
    std::lock_guard lock(mutex_);
    if (const auto found = free_.find(size); found != free_.end() && !found->second.empty()) {
      auto* block = found->second.back();
      found->second.pop_back();
      kept_ -= size;
      in_use_ += size;
      peak_ = std::max(peak_, in_use_);
      return block + 1;
    }
    // Blocks of sizes that are not asked for any more make room, or this one would come on top of them.
    trim_to(limit() - std::min(limit(), size));
  }
  const auto take = [&] { return size >= huge_page ? map_block(size) : std::aligned_alloc(alignment, size); };
  void* memory = take();
  if (!memory) {
    trim();
    memory = take();
  }
  if (!memory) throw std::bad_alloc();
  auto* block = new (memory) Header{size};
  if (is_kept) {
    std::lock_guard lock(mutex_);
    in_use_ += size;
    peak_ = std::max(peak_, in_use_);
  }
  return block + 1;
}

void BlockCache::deallocate(void* data) noexcept {
  if (!data) return;
  auto* block = static_cast<Header*>(data) - 1;
  if (block->bytes < smallest_kept) return release(block);
  std::lock_guard lock(mutex_);
  in_use_ -= block->bytes;
  if (--until_new_peak_ == 0) {
    until_new_peak_ = peak_period;
    peak_before_ = std::exchange(peak_, in_use_);
    trim_to(limit());
  }
  if (in_use_ + kept_ + block->bytes > limit()) return release(block);
  try {
    free_[block->bytes].push_back(block);
    kept_ += block->bytes;
  } catch (const std::bad_alloc&) {
    release(block);
  }
}

std::size_t BlockCache::limit() const { return std::max(peak_, peak_before_) + spare_bytes; }

void BlockCache::release(Header* block) noexcept {
  if (block->bytes >= huge_page)
    ::munmap(block, block->bytes);
  else
    std::free(block);
}

void BlockCache::trim() noexcept {
  std::lock_guard lock(mutex_);
  trim_to(0);
}

/// The largest go first.
void BlockCache::trim_to(std::size_t most) noexcept {
  while (kept_ > 0 && in_use_ + kept_ > most) {
    const auto largest = std::prev(free_.end());
    while (!largest->second.empty() && in_use_ + kept_ > most) {
      kept_ -= largest->first;
      release(largest->second.back());
      largest->second.pop_back();
    }
    if (largest->second.empty()) free_.erase(largest);
  }
}

std::size_t BlockCache::in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}

std::size_t BlockCache::kept() const {
  std::lock_guard lock(mutex_);
  return kept_;
}

}  // namespace troupe
