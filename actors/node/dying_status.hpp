// SPDX-License-Identifier: Apache-2.0
// What a process dies of, before it is dead: the kernel frees its memory first, a tenth of a second for each gigabyte,
// and tells its parent after that.
#pragma once

#include <sys/types.h>

#include <optional>

namespace troupe::node {

/// As wait() will give it. Empty if it ends with status 0 (which cannot be told from one that lives), if it is not
/// known yet, and for one that is dead already: its end is told anyway.
std::optional<int> dying_status(pid_t pid, int pidfd);

}  // namespace troupe::node
