// SPDX-License-Identifier: Apache-2.0
// What can end an attempt, as data.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <troupe/error.hpp>

namespace troupe::engine {

/// All control logic takes the time as an argument, so that tests run on virtual time.
using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Duration = std::chrono::milliseconds;

enum class FailureKind : std::uint8_t {
  worker_lost,  ///< a process died or its connection broke: retried within max_retries
  user_error,   ///< the train function threw: retried only if asked
  fatal,        ///< running again cannot help: never retried
};

/// Why an attempt, a start or a run ended.
struct Failure {
  FailureKind kind = FailureKind::fatal;
  ErrorCode code = ErrorCode::internal;
  int rank = -1;  ///< -1: no rank in particular
  std::string text;
  std::vector<std::string> log_lines;  ///< the rank's last output, oldest first
};

}  // namespace troupe::engine
