// SPDX-License-Identifier: Apache-2.0
// Committed checkpoints in storage: in another folder, or in a bucket of S3-compatible object storage.
//
// A location is a path, or "s3://bucket/run/checkpoint_000003?endpoint=http://127.0.0.1:9000&region=eu-central-1"; what
// stands behind '?' may be left out for AWS. Credentials, region and endpoint come from the usual AWS variables and
// files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace troupe {

struct StoredCheckpoint {
  std::string location;
  std::uint64_t bytes = 0;
};

/// Copies the folder of a committed checkpoint; there it appears as a whole or not at all. Temporary failures are tried
/// again for three minutes. Throws invalid_option for a bad location or missing credentials, io for everything else,
/// also if there is a checkpoint already.
void upload_checkpoint(const std::filesystem::path& folder, const std::string& location);
/// Copies a stored checkpoint into a new folder, for Checkpoint::from_path(). Throws like upload_checkpoint().
void download_checkpoint(const std::string& location, const std::filesystem::path& folder);
/// The checkpoints below a location, by name; only whole ones.
std::vector<StoredCheckpoint> list_stored_checkpoints(const std::string& location);
/// No error if there is none; removes what a broken upload left, too.
void remove_stored_checkpoint(const std::string& location);

}  // namespace troupe
