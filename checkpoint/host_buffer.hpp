// SPDX-License-Identifier: Apache-2.0
// Memory that is kept and used again: touching fresh memory costs more than the copy into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace troupe::detail {

/// Page-aligned memory, in huge pages where the system gives them. Content is lost when it grows.
class HostBuffer {
public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~HostBuffer();

  /// Throws too_large when the system has not so much memory.
  void reserve(std::uint64_t size);
  std::byte* data() const { return memory_; }
  std::uint64_t capacity() const { return capacity_; }

private:
  std::byte* memory_ = nullptr;
  std::uint64_t capacity_ = 0;
};

}  // namespace troupe::detail
