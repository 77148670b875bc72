// SPDX-License-Identifier: Apache-2.0
// What a checkpoint may hold; checked when it is written, and before memory is asked for when it is read.
#pragma once

#include <cstddef>

namespace troupe::detail {

inline constexpr int deepest_nesting = 100;
inline constexpr std::size_t longest_key = 4096;
inline constexpr std::size_t most_dimensions = 64;

}  // namespace troupe::detail
