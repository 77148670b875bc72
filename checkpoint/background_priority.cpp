// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/background_priority.hpp"

#include <sched.h>
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

bool may_raise() {
  constexpr rlim_t usual = 20;  // of RLIMIT_NICE: down to nice 0
  rlimit limit{};
  return ::geteuid() == 0 || (::getrlimit(RLIMIT_NICE, &limit) == 0 && limit.rlim_cur >= usual);
}

}  // namespace

void set_background_priority(bool low, int thread) {
  if (may_raise()) {
    const sched_param parameters{};
    ::sched_setscheduler(thread, low ? SCHED_IDLE : SCHED_OTHER, &parameters);
  } else if (low) {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), little_lower);
  }
  ::syscall(SYS_ioprio_set, ioprio_who_process, thread,
            (low ? ioprio_class_idle : ioprio_class_none) << ioprio_class_shift);
}

}  // namespace troupe::detail
