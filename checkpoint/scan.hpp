// SPDX-License-Identifier: Apache-2.0
// Finds the checkpoints in a run's folder, and removes what was not finished.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"

namespace troupe::detail {

struct CommittedCheckpoint {
  std::filesystem::path path;
  Manifest manifest;
};

/// "checkpoint_000001".
std::string checkpoint_name(std::uint64_t id);
/// The number in such a name, or nothing.
std::optional<std::uint64_t> checkpoint_id(const std::string& name);

/// The committed checkpoints in `parent`, the newest first: the highest number, whatever the clocks said. Folders
/// without a manifest or with a damaged one are passed over; a text for each damaged one goes to `damaged`.
std::vector<CommittedCheckpoint> scan(const std::filesystem::path& parent, std::vector<std::string>* damaged = nullptr);

/// Removes temporary files and checkpoint folders that were never committed. Call it before anybody writes there. A
/// folder with a damaged manifest stays: people may want it.
void sweep(const std::filesystem::path& parent);

/// Removes a checkpoint; its manifest first, so that half of one is never taken for a whole.
void remove_checkpoint(const std::filesystem::path& folder);

}  // namespace troupe::detail
