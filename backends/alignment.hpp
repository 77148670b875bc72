// SPDX-License-Identifier: Apache-2.0
// Sizes and addresses at multiples of something.
#pragma once

#include <cstddef>

namespace troupe {

inline constexpr std::size_t cache_line = 64;

constexpr std::size_t round_up(std::size_t value, std::size_t step) { return (value + step - 1) / step * step; }

}  // namespace troupe
