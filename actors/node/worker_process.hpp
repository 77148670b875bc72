// SPDX-License-Identifier: Apache-2.0
// The first steps of a worker process.
#pragma once

#include <vector>

#include "actors/node/descriptors.hpp"
#include "actors/node/node.hpp"

namespace troupe::node {

/// Turns the freshly forked child into a worker; `fds` are stream, descriptor channel, stdout, stderr. noexcept: what
/// `worker_main` lets out is std::terminate, here, with its text on stderr.
[[noreturn]] void run_worker(Token token, const std::vector<UniqueFd>& fds, pid_t fork_server,
                             WorkerMain worker_main) noexcept;

}  // namespace troupe::node
