// SPDX-License-Identifier: Apache-2.0
// How the end of a run is told to the user.
#pragma once

#include "actors/run.hpp"

namespace troupe {

/// Throws Interrupted or TrainingFailed unless the run ended well.
void throw_if_failed(const detail::Run& run, const detail::RunResult& result);

/// The whole story of a failure: rank, cause, why there was no further attempt, last log lines.
std::string describe_failure(const engine::RunOutcome& outcome);

}  // namespace troupe
