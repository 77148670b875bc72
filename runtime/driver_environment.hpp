// SPDX-License-Identifier: Apache-2.0
// What of the driver's environment workers are told.
#pragma once

#include <string>
#include <vector>

namespace troupe::detail {

/// The driver's variables where they differ from what the fork server has, and the thread count for OpenMP unless the
/// user set one: "NAME=value" to set, "NAME" to unset.
std::vector<std::string> environment_for_workers(int threads);

/// Empty when it is gone.
std::string current_directory();

/// Whether reports carry date, host, address, pid and total time:
/// TROUPE_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS=1, or the names of RaySGD and Ray Train.
bool wants_detailed_metrics();

}  // namespace troupe::detail
