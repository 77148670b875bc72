// SPDX-License-Identifier: Apache-2.0
// The manifest makes a folder of shards a checkpoint: before its rename there is none, after it there is a whole one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <troupe/json.hpp>

namespace troupe::detail {

inline constexpr std::string_view manifest_name = "manifest.json";
/// The folder of the user's files inside a checkpoint that has them.
inline constexpr std::string_view files_folder = "files";

/// One rank's part.
struct ShardInfo {
  std::string file;  ///< in the checkpoint's folder
  int rank = 0;
  std::uint64_t size = 0;
  std::uint32_t crc = 0;  ///< of its header, which covers all the rest

  bool operator==(const ShardInfo&) const = default;
};

/// One of the user's files.
struct FileInfo {
  std::string name;  ///< relative to the folder of files
  std::uint64_t size = 0;
  std::uint32_t crc = 0;  ///< of its content

  bool operator==(const FileInfo&) const = default;
};

struct Manifest {
  std::uint64_t id = 0;          ///< 1-based number in the run; the higher one is the later one
  std::uint64_t generation = 0;  ///< of the attempt that saved it
  std::int64_t timestamp = 0;    ///< seconds since 1970, for people
  Json metrics = Json::object();
  bool has_files = false;         ///< a folder of files instead of dictionaries
  std::vector<ShardInfo> shards;  ///< by rank
  std::vector<FileInfo> files;

  bool operator==(const Manifest&) const = default;
};

/// The text of the file; it is JSON and carries its own checksum.
std::string write_manifest(const Manifest& manifest);
/// `where` is for messages. Throws io when a byte of it is wrong, or it says what cannot be.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& where);

/// Whether JSON can hold the text as it is.
bool is_utf8(const std::string& text);

/// Commits what is in `folder`: makes its names durable, writes the manifest under a temporary name, and renames it.
/// `may_commit` has the last word, right before the rename: it throws if not. When this throws, the folder holds no
/// committed checkpoint.
void commit(
    const std::filesystem::path& folder, const Manifest& manifest, const std::function<void()>& may_commit = [] {});
/// Whether a folder is one that was saved, damaged or not: users have files named manifest.json too.
bool is_saved(const std::filesystem::path& folder);
/// Nothing if there is none; throws io if it is damaged.
std::optional<Manifest> read_manifest(const std::filesystem::path& folder);

}  // namespace troupe::detail
