// SPDX-License-Identifier: Apache-2.0
// A short training for tests that disturb it: what it gives depends on every round and its order.
#pragma once

#include <cstdint>

#include <troupe/troupe.hpp>

namespace troupe::test {

constexpr int steady_rounds = 40;

/// All ranks save every fifth round, with config["floats"] numbers, so that none is far ahead of the others.
std::uint64_t train_steadily(const Config& config);
/// What it gives on a rank when nothing happens.
std::uint64_t steady_result(int rank);

}  // namespace troupe::test
