// SPDX-License-Identifier: Apache-2.0
// Programs fork, and a fork has no thread but the one that called it: what threads serve is of use only where it was
// made.
#pragma once

#include <sys/types.h>

#include <memory>

namespace troupe::detail {

bool is_this_process(pid_t made_in);
/// Throws Error(invalid_state) in a fork of the process that something was made in.
void require_process(pid_t made_in);
/// Keeps for ever what nothing can end any more.
void leave_behind(std::shared_ptr<void> what);

}  // namespace troupe::detail
