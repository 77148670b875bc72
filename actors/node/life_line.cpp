// SPDX-License-Identifier: Apache-2.0
#include "actors/node/life_line.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <new>

#include "actors/node/futex.hpp"

namespace troupe::node {

namespace {

constexpr std::size_t page = 4096;
static_assert(sizeof(pthread_mutex_t) <= page);
static_assert(offsetof(pthread_mutex_t, __data.__lock) == 0, "the host watches the first word of the page");

}  // namespace

LifeLine::Ends LifeLine::make() {
  UniqueFd memory(::memfd_create("troupe-life-line", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ::ftruncate(memory.get(), page) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return {};
  }
  void* mapped = ::mmap(nullptr, page, PROT_READ, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) {
    return {};
  }
  return {std::make_shared<const LifeLine>(static_cast<const std::uint32_t*>(mapped)), std::move(memory)};
}

LifeLine::~LifeLine() { ::munmap(const_cast<std::uint32_t*>(word_), page); }

std::uint32_t LifeLine::value() const { return __atomic_load_n(word_, __ATOMIC_ACQUIRE); }

bool LifeLine::tells_death(std::uint32_t value) { return (value & FUTEX_OWNER_DIED) != 0; }

void hold_life_line(int fd) {
  void* mapped = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    return;
  }
  ::madvise(mapped, page, MADV_DONTFORK);  // it is this process's own
  auto* mutex = new (mapped) pthread_mutex_t;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  pthread_mutex_lock(mutex);
  // The kernel wakes only those whom the word announces; the host, who may not write, is announced by us.
  auto* word = static_cast<std::uint32_t*>(mapped);
  std::atomic_ref(*word).fetch_or(FUTEX_WAITERS);
  futex_wake_all(word, 0);
}

}  // namespace troupe::node
