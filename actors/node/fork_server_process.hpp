// SPDX-License-Identifier: Apache-2.0
// What runs inside the fork server, and the habits it shares with its workers.
#pragma once

#include <sys/types.h>

#include "actors/node/node.hpp"

namespace troupe::node {

/// Where a fork server has its socket.
constexpr int fork_server_socket = 3;

[[noreturn]] void run_fork_server(int socket, pid_t host, WorkerMain worker_main);

/// All signals at their defaults, but SIGPIPE ignored.
void reset_signals();
/// SIGKILL when the thread of the parent that made us ends.
void die_with_parent(pid_t parent);

}  // namespace troupe::node
