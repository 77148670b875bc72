// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/background_priority.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace troupe::detail {
namespace {

// From linux/ioprio.h, which older systems lack.
constexpr int ioprio_who_process = 1;
constexpr int ioprio_class_shift = 13;
constexpr int ioprio_class_none = 0;
constexpr int ioprio_class_idle = 3;

}  // namespace

void set_background_priority(bool low) {
  sched_param parameters{};
  ::sched_setscheduler(0, low ? SCHED_IDLE : SCHED_OTHER, &parameters);
  ::syscall(SYS_ioprio_set, ioprio_who_process, 0, (low ? ioprio_class_idle : ioprio_class_none) << ioprio_class_shift);
}

}  // namespace troupe::detail
