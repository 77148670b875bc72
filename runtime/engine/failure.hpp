// SPDX-License-Identifier: Apache-2.0
// What can end an attempt, as data.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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
  resized,      ///< runs again with another number of workers: costs nothing
  fatal,        ///< running again cannot help: never retried
  preempted,    ///< a worker was taken away with notice: retried at no cost
};

/// "lost worker", "user error" ...: as it stands in logs and in run.json.
std::string_view cause_name(FailureKind kind);

/// Why an attempt, a start or a run ended.
struct Failure {
  FailureKind kind = FailureKind::fatal;
  ErrorCode code = ErrorCode::internal;
  int rank = -1;  ///< -1: no rank in particular
  std::string text;
  std::vector<std::string> log_lines = {};  ///< the rank's last output, oldest first
  std::int64_t round = -1;                  ///< the rank was past this one; -1: not known
  std::optional<std::int64_t> step = {};    ///< of a function that goes on in place: past this one; -1: none
};

/// Of a run that shutdown() cuts off.
inline constexpr const char* shut_down_text = "the trainer was shut down while the run was active";

}  // namespace troupe::engine
