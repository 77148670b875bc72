// SPDX-License-Identifier: Apache-2.0
// Two runs of the same program on the same data give equal bits.
#pragma once

#include <cstdint>

namespace troupe::train::torch {

struct ReproducibilityOptions {
  /// Threads that an operation may use; sums come out differently with another number. 0: as many as the worker has,
  /// its share of the cores. Give a number to get equal bits on machines with other numbers of cores.
  int threads = 0;
};

/// Seeds libtorch's generators, differently on each rank, fixes the number of threads, and lets libtorch use
/// deterministic algorithms only: an operation that has none throws. First thing in a train function; it stays in
/// force in the worker's process.
///
/// Throws invalid_state where several ranks share a process (thread placement): they share libtorch's generator, too,
/// and would get its numbers in an order that nothing determines.
void enable_reproducibility(std::uint64_t seed = 0, const ReproducibilityOptions& options = {});

}  // namespace troupe::train::torch
