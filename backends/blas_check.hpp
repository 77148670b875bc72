// SPDX-License-Identifier: Apache-2.0
// Which BLAS a program runs on. The reference one multiplies matrices 30 to 45 times slower than OpenBLAS.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troupe {

/// The path of a reference BLAS among the loaded libraries; `maps` is what /proc/self/maps says.
std::optional<std::string> find_reference_blas(std::string_view maps);
/// Warns once a process.
void warn_of_reference_blas();

}  // namespace troupe
