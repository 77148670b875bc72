// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/own_process.hpp"

#include <unistd.h>

#include <mutex>
#include <utility>
#include <vector>

#include <troupe/error.hpp>

namespace troupe::detail {

bool is_this_process(pid_t made_in) { return ::getpid() == made_in; }

void require_process(pid_t made_in) {
  if (!is_this_process(made_in))
    throw Error(ErrorCode::invalid_state,
                "this process is a fork of one that has used troupe: fork before the first Trainer, or exec");
}

void leave_behind(std::shared_ptr<void> what) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;  // in reach of leak checkers
  std::lock_guard lock(mutex);
  kept->push_back(std::move(what));
}

}  // namespace troupe::detail
