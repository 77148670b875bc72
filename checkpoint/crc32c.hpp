// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli), the checksum of everything in a checkpoint on disk.
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::detail {

/// The checksum of `size` bytes that follow those with the checksum `previous`. Uses the processor's instruction where
/// there is one.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t previous = 0);

/// The same without the instruction; for machines that lack it, and for tests.
std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t previous = 0);

}  // namespace troupe::detail
