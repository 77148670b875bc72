// SPDX-License-Identifier: Apache-2.0
// Small files that are either old or new, never half.
#pragma once

#include <filesystem>
#include <string_view>

namespace troupe::detail {

/// Writes a temporary file in the same folder, syncs it and renames it over `path`. Throws io; the old file stays then.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace troupe::detail
