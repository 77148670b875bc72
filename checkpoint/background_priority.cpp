// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/background_priority.hpp"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace troupe::detail {
namespace {

// From linux/ioprio.h, which older systems lack.
constexpr int ioprio_who_process = 1;
constexpr int ioprio_class_shift = 13;
constexpr int ioprio_class_none = 0;
constexpr int ioprio_class_idle = 3;

constexpr int little_lower = 10;

}  // namespace

void set_background_priority(bool low, int thread) {
  // Not SCHED_IDLE: many systems give no way back from it, and a busy machine would starve the writer.
  if (low) ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), little_lower);
  ::syscall(SYS_ioprio_set, ioprio_who_process, thread,
            (low ? ioprio_class_idle : ioprio_class_none) << ioprio_class_shift);
}

}  // namespace troupe::detail
