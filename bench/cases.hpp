// SPDX-License-Identifier: Apache-2.0
// The cases, one file each.
#pragma once

#include <cstdint>

#include "bench/harness.hpp"

namespace troupe::bench {

void bench_startup(const Output& output);
void bench_report(const Output& output);
void bench_calls(const Output& output);
void bench_memory(const Output& output);
void bench_teardown(const Output& output);
void bench_checkpoint(const Output& output);
/// A part of it.
void measure_step_slowdown(const Output& output, const std::filesystem::path& folder);
// With libtorch only.
void bench_allreduce(const Output& output);
void bench_ddp(const Output& output);
void bench_recovery(const Output& output);

/// Kills a worker every 5 to 15 s for so long; false if the weights differ from those of a run without kills, or the
/// program or its fork server grew.
bool soak_kills(int seconds, std::uint64_t seed);

/// What a copy of this program does for run_probe(): gives the number to print.
double probe_startup(const ProbeRequest& request);
double probe_memory(const ProbeRequest& request);

/// Reports `reports` times into a slow callback; false if a process grew by more than 20 MB meanwhile.
bool soak(std::int64_t reports);

}  // namespace troupe::bench
