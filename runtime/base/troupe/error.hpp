// SPDX-License-Identifier: Apache-2.0
// The one exception tree that reaches users. Every message says what happened, where, why it is likely, and what to
// change; `code()` is for programs, `what()` is for people.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace troupe {

/// What went wrong, for programs. Append only: the numbers travel between processes and stand in run.json.
enum class ErrorCode : std::uint8_t {
  internal = 0,          ///< a bug in troupe
  invalid_option = 1,    ///< a constructor or run option is refused
  invalid_argument = 2,  ///< a value handed to a function of ours is refused (config, metrics, argument)
  invalid_state = 3,     ///< the call does not fit the moment (run while running, execute before start)
  not_in_worker = 4,     ///< a train:: function was called where no worker is
  user_code = 5,         ///< the train function, a hook or a remote call threw
  callback_failed = 6,   ///< a callback threw
  worker_lost = 7,       ///< a worker process died or its connection broke
  start_failed = 8,      ///< workers could not be started
  deadline = 9,          ///< something did not happen in time
  unequal_reports = 10,  ///< ranks reported unequally often
  too_large = 11,        ///< a value is above what a message may carry
  interrupted = 12,      ///< Ctrl-C or SIGTERM
  stopped = 13,          ///< the run is being stopped; unwinds the train function
  refused = 14,          ///< another program or version tried to register
  io = 15,               ///< files and folders
  group_lost = 16,       ///< a collective operation was ended because a rank is gone
};

/// The name of a code, as it stands in run.json.
std::string_view to_string(ErrorCode code);

/// Base of everything troupe throws.
class Error : public std::runtime_error {
public:
  Error(ErrorCode code, const std::string& message, std::optional<int> rank = std::nullopt)
      : std::runtime_error(message), code_(code), rank_(rank) {}

  ErrorCode code() const noexcept { return code_; }
  /// The rank that failed (first), if one did.
  std::optional<int> rank() const noexcept { return rank_; }

private:
  ErrorCode code_;
  std::optional<int> rank_;
};

/// The end of a run that could not be finished: first failing rank, its signal or exception text, its last log lines.
class TrainingFailed : public Error {
public:
  using Error::Error;
};

/// A run was ended by Ctrl-C or SIGTERM. Programs exit with `exit_code()` (128 + signal).
class Interrupted : public Error {
public:
  Interrupted(const std::string& message, int signal) : Error(ErrorCode::interrupted, message), signal_(signal) {}
  int exit_code() const noexcept { return 128 + signal_; }

private:
  int signal_;
};

/// Unwinds a train function whose run is being stopped. Let it pass: a function that swallows it is killed at the
/// shutdown deadline.
class Stopped : public Error {
public:
  Stopped() : Error(ErrorCode::stopped, "the run is being stopped") {}
};

/// A collective operation cannot finish because another rank is gone or the run is being stopped. Let it pass: the run
/// is started again or ended.
class GroupLost : public Error {
public:
  explicit GroupLost(const std::string& message) : Error(ErrorCode::group_lost, message) {}
};

}  // namespace troupe
