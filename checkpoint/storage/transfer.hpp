// SPDX-License-Identifier: Apache-2.0
// Checkpoint folders in storage. As on disk, the manifest makes a checkpoint: it is written last and removed first, and
// what has none is not there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/storage/storage.hpp"

namespace troupe::storage {

struct StoredCheckpoint {
  std::string key;  ///< the "folder", such as "run_001/checkpoints/checkpoint_000003"
  std::uint64_t bytes = 0;
  friend bool operator==(const StoredCheckpoint&, const StoredCheckpoint&) = default;
};

/// Copies a committed folder to `key`: what its manifest names, then the manifest. Throws io when it is not committed,
/// when a file has not the size it should have, or when a checkpoint is stored there already (which then stays as it
/// is).
void upload_checkpoint(const std::filesystem::path& folder, Storage& storage, const std::string& key);

/// Copies a stored checkpoint into a new folder. Throws io when there is none, or when `folder` is not empty; nothing
/// is left of it then.
void download_checkpoint(Storage& storage, const std::string& key, const std::filesystem::path& folder);

/// All checkpoints whose key begins with `prefix`, by key; only whole ones.
std::vector<StoredCheckpoint> list_checkpoints(Storage& storage, const std::string& prefix = "");

/// No error if there is none. What a broken upload left under `key` is removed too.
void remove_checkpoint(Storage& storage, const std::string& key);

/// Only what a broken upload left under `key`: a whole checkpoint stays.
void remove_unfinished(Storage& storage, const std::string& key);

}  // namespace troupe::storage
