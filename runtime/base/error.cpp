// SPDX-License-Identifier: Apache-2.0
// Names of error codes, as they stand in run.json.
#include <troupe/error.hpp>

namespace troupe {

std::string_view to_string(ErrorCode code) {
  // No default: the compiler names a code that was forgotten here.
  switch (code) {
    case ErrorCode::internal:
      return "internal";
    case ErrorCode::invalid_option:
      return "invalid_option";
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::invalid_state:
      return "invalid_state";
    case ErrorCode::not_in_worker:
      return "not_in_worker";
    case ErrorCode::user_code:
      return "user_code";
    case ErrorCode::callback_failed:
      return "callback_failed";
    case ErrorCode::worker_lost:
      return "worker_lost";
    case ErrorCode::start_failed:
      return "start_failed";
    case ErrorCode::deadline:
      return "deadline";
    case ErrorCode::unequal_reports:
      return "unequal_reports";
    case ErrorCode::too_large:
      return "too_large";
    case ErrorCode::interrupted:
      return "interrupted";
    case ErrorCode::stopped:
      return "stopped";
    case ErrorCode::refused:
      return "refused";
    case ErrorCode::io:
      return "io";
    case ErrorCode::group_lost:
      return "group_lost";
  }
  return "unknown";  // a number from another process
}

}  // namespace troupe
