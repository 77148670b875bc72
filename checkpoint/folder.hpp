// SPDX-License-Identifier: Apache-2.0
// A committed checkpoint on disk: a folder with a manifest, and what the manifest names.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "checkpoint/manifest.hpp"
#include "checkpoint/shard_reader.hpp"

namespace troupe::detail {

/// An open folder. Shards are opened when they are first needed. Several threads may use one.
class CheckpointFolder : public std::enable_shared_from_this<CheckpointFolder> {
public:
  /// Throws io when there is no manifest, or it is damaged.
  static std::shared_ptr<const CheckpointFolder> open(const std::filesystem::path& path);
  /// A folder of the user's own files, without a manifest.
  static std::shared_ptr<const CheckpointFolder> of_files(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  /// Where the user's files lie; the folder itself when it has no manifest.
  std::filesystem::path files() const { return is_plain_ ? path_ : path_ / files_folder; }
  bool is_plain() const { return is_plain_; }
  int parts() const { return static_cast<int>(manifest_.shards.size()); }

  /// Checks every byte; throws io at the first that is wrong.
  void verify() const;
  /// The part that `rank` saved.
  Checkpoint saved_part(int rank) const;
  /// What `rank` of `world_size` loads; keeps this object.
  Checkpoint part(int rank, int world_size) const;

private:
  CheckpointFolder(std::filesystem::path path, Manifest manifest, bool is_plain)
      : path_(std::move(path)),
        manifest_(std::move(manifest)),
        is_plain_(is_plain),
        readers_(manifest_.shards.size()) {}
  std::shared_ptr<const ShardReader> reader(int rank) const;

  std::filesystem::path path_;
  Manifest manifest_;
  bool is_plain_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const ShardReader>> readers_;
};

/// Throws io unless there is nothing at `folder`, or an empty folder.
void require_fresh(const std::filesystem::path& folder);
void make_fresh_folder(const std::filesystem::path& folder);
/// Commits a folder whose only part is `shard`, outside of any run.
void commit_alone(const std::filesystem::path& folder, const ShardInfo& shard);

/// What `rank` of `world_size` loads of a checkpoint that was saved in `parts`; see Checkpoint::part().
Checkpoint reshard(const std::vector<Checkpoint>& parts, int rank, int world_size);

/// Copies all files below `from` into `to`, which must not exist, and makes them durable. Throws io; also for what is
/// neither a file nor a folder.
std::vector<FileInfo> copy_files(const std::filesystem::path& from, const std::filesystem::path& to);
/// Copies the files and checks every byte; throws io.
void copy_files_checked(const std::filesystem::path& from, const std::filesystem::path& to,
                        const std::vector<FileInfo>& files);
/// Compares a file with its size and checksum; throws io.
void check_file(const std::filesystem::path& folder, const FileInfo& file);

}  // namespace troupe::detail
