// SPDX-License-Identifier: Apache-2.0
// Memory blocks that are kept for the next one who needs such a size. A training step needs the same sizes again and
// again; given back to the system in between, their pages are cleared and mapped anew each time, which costs up to half
// of a step on CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace troupe {

class BlockCache {
public:
  /// Where user data begins is a multiple of it.
  static constexpr std::size_t alignment = 64;
  /// Smaller blocks are left to malloc, which is good at them.
  static constexpr std::size_t smallest_kept = std::size_t{64} << 10;

  BlockCache() = default;
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// Throws std::bad_alloc when there is no memory, also after all kept blocks were given back.
  void* allocate(std::size_t bytes);
  /// Null is fine.
  void deallocate(void* data) noexcept;
  /// Gives all kept blocks back to the system.
  void trim() noexcept;

  /// Bytes of blocks that are in use, and of those that are kept for later.
  std::size_t in_use() const;
  std::size_t kept() const;

  /// What is really taken for so many bytes: at most an eighth more.
  static std::size_t block_bytes(std::size_t bytes);

private:
  struct Header;
  void release(Header* block) noexcept;
  void trim_to(std::size_t limit) noexcept;
  std::size_t limit() const;

  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<Header*>> free_;  // by size
  std::size_t in_use_ = 0;
  std::size_t kept_ = 0;
  // The most that was in use lately; a peak of long ago is no reason to keep memory.
  std::size_t peak_ = 0;
  std::size_t peak_before_ = 0;
  std::uint32_t until_new_peak_ = peak_period;
  static constexpr std::uint32_t peak_period = 4096;
};

}  // namespace troupe
