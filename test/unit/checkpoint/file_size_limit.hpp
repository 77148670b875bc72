// SPDX-License-Identifier: Apache-2.0
// A disk that gets full.
#pragma once

#include <sys/resource.h>

#include <csignal>

namespace troupe::test {

/// Writes beyond so many bytes fail.
class FileSizeLimit {
public:
  explicit FileSizeLimit(rlim_t size) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit low{size, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &low);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, SIG_DFL);
  }

private:
  rlimit old_{};
};

}  // namespace troupe::test
