// SPDX-License-Identifier: Apache-2.0
// Helper threads of the host program, and how many threads there are.
#pragma once

#include <functional>
#include <thread>

namespace troupe::node {

/// Starts a thread that takes no signals, so that the program's handlers run on its own threads. Throws
/// Error(start_failed).
std::thread start_thread(const char* name, std::function<void()> body);
/// False also when it cannot be known.
bool has_one_thread();

}  // namespace troupe::node
