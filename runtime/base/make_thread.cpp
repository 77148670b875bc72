// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/make_thread.hpp"

#include <fmt/core.h>

#include <system_error>
#include <utility>

#include <troupe/error.hpp>

namespace troupe::detail {

std::thread make_thread(const char* purpose, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::start_failed,
                fmt::format("cannot start the thread {}: {}. Raise the limit of threads (ulimit -u, or pids.max of the "
                            "container).",
                            purpose, error.what()));
  }
}

}  // namespace troupe::detail
