// SPDX-License-Identifier: Apache-2.0
// Copies of memory that nobody reads soon.
#pragma once

#include <cstddef>

namespace troupe::detail {

/// memcpy() that leaves the processor's cache alone when there is much to copy: half as long again would be spent on
/// reading the destination first.
void copy_large(std::byte* destination, const std::byte* source, std::size_t size);

}  // namespace troupe::detail
