// SPDX-License-Identifier: Apache-2.0
#include "runtime/run_errors.hpp"

#include <csignal>

#include <fmt/format.h>
#include <troupe/error.hpp>

namespace troupe {

std::string describe_failure(const engine::RunOutcome& outcome) {
  const auto& failure = *outcome.failure;
  std::string text;
  if (failure.kind == engine::FailureKind::fatal)
    text = failure.text;
  else if (failure.kind == engine::FailureKind::user_error)
    text = fmt::format("rank {} threw: {}", failure.rank, failure.text);
  else if (failure.kind == engine::FailureKind::preempted)
    text = fmt::format("rank {} was preempted: {}", failure.rank, failure.text);
  else
    text = fmt::format("rank {} was lost: {}", failure.rank, failure.text);
  if (outcome.attempts > 1) text += fmt::format(" (attempt {})", outcome.attempts);
  const bool user_error_once = failure.kind == engine::FailureKind::user_error && outcome.decisions.size() <= 1;
  if (failure.kind != engine::FailureKind::fatal && !user_error_once && !outcome.decision.empty())
    text += fmt::format("\n  not run again: {}", outcome.decision);
  if (!failure.log_lines.empty()) text += fmt::format("\n  last output of rank {}:", failure.rank);
  for (const auto& line : failure.log_lines) text += "\n    " + line;
  return text;
}

void throw_if_failed(const detail::Run& run, const detail::RunResult& result) {
  switch (result.outcome.status) {
    case engine::RunStatus::succeeded:
    case engine::RunStatus::stopped:
      return;
    case engine::RunStatus::interrupted: {
      const int number = run.signal != 0 ? run.signal.load() : SIGINT;
      throw Interrupted(number == SIGTERM ? "the run was ended by SIGTERM" : "the run was ended by Ctrl-C", number);
    }
    case engine::RunStatus::failed:
      break;
  }
  const int rank = result.outcome.failure->rank;
  throw TrainingFailed(result.outcome.failure->code, describe_failure(result.outcome),
                       rank < 0 ? std::nullopt : std::optional<int>(rank));
}

}  // namespace troupe
