// SPDX-License-Identifier: Apache-2.0
// A system that has no thread left.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace troupe::test {

/// While it lives no thread can be had: each would get a stack that no address space has room for.
class NoThreads {
public:
  NoThreads() {
    ::pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    ::pthread_getattr_default_np(&attributes);
    ::pthread_attr_setstacksize(&attributes, std::size_t{1} << 47);
    ::pthread_setattr_default_np(&attributes);
    ::pthread_attr_destroy(&attributes);
  }
  ~NoThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

private:
  pthread_attr_t before_;
};

}  // namespace troupe::test
