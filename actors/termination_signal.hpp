// SPDX-License-Identifier: Apache-2.0
// SIGTERM in a worker process: the host's way to say that it will be taken away soon.
#pragma once

#include <functional>

namespace troupe {

class TerminationSignal {
public:
  /// From now on, and for the rest of the process, SIGTERM calls `then` on a thread of its own instead of ending the
  /// process. A handler that user code installs later takes its place.
  static void watch(std::function<void()> then);
  /// SIGTERM ends the process again (unless user code has a handler of its own).
  static void restore();
};

}  // namespace troupe
