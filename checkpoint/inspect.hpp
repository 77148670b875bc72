// SPDX-License-Identifier: Apache-2.0
// What the command line tells about checkpoints. Each function prints tables for people and gives the exit code: 0, or
// 1 when something is damaged or there is nothing.
#pragma once

#include <filesystem>
#include <iosfwd>

namespace troupe::detail {

/// The checkpoints in a folder (or in the `checkpoints` and `latest` of a run's folder), the newest first.
int list_checkpoints(const std::filesystem::path& folder, std::ostream& out);
/// Everything in one checkpoint; of one that several ranks saved, the whole.
int show_checkpoint(const std::filesystem::path& folder, std::ostream& out);
/// Compares every byte of a checkpoint, or of all in a folder, with its checksum.
int verify_checkpoints(const std::filesystem::path& folder, std::ostream& out);

}  // namespace troupe::detail
