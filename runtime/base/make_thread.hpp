// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <thread>

namespace troupe::detail {

/// Starts a thread. Throws Error(start_failed), which says what it was for, when the system has none left.
std::thread make_thread(const char* purpose, std::function<void()> body);

}  // namespace troupe::detail
