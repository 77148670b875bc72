// SPDX-License-Identifier: Apache-2.0
// The futex calls that the C library does not offer.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <ctime>
#include <limits>
#include <span>

namespace troupe::node {

/// Wakes all who wait on the word; `flags`: FUTEX_PRIVATE_FLAG when they are all of this process.
inline void futex_wake_all(const std::uint32_t* word, int flags) {
  ::syscall(SYS_futex, word, FUTEX_WAKE | flags, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

/// Waits until one of the words is woken; not at all when one has another value than given.
inline void futex_wait_any(std::span<const ::futex_waitv> words) {
  ::syscall(SYS_futex_waitv, words.data(), words.size(), 0, nullptr, CLOCK_MONOTONIC);
}

/// The same for one word, on kernels of any age.
inline void futex_wait_one(const ::futex_waitv& word, const ::timespec& timeout) {
  const int operation = FUTEX_WAIT | static_cast<int>(word.flags & FUTEX_PRIVATE_FLAG);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel's structure holds addresses as numbers
  ::syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(word.uaddr), operation,
            static_cast<std::uint32_t>(word.val), &timeout, nullptr, 0);
}

/// Linux 5.16 and later, unless a sandbox forbids it.
inline bool can_wait_for_any() {
  return ::syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, CLOCK_MONOTONIC) < 0 && errno == EINVAL;
}

}  // namespace troupe::node
