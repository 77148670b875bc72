// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/transfer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include <troupe/error.hpp>

#include "checkpoint/manifest.hpp"
#include "checkpoint/new_file.hpp"
#include "checkpoint/storage/parallel.hpp"

namespace troupe::storage {
namespace fs = std::filesystem;
namespace {

/// Objects at once; each may travel in several parts.
constexpr int objects_at_once = 4;

std::string manifest_key(const std::string& key) { return fmt::format("{}/{}", key, detail::manifest_name); }

struct Part {
  std::string name;  ///< in the checkpoint's folder
  std::uint64_t size = 0;
};

std::vector<Part> parts_of(const detail::Manifest& manifest) {
  std::vector<Part> parts;
  for (const auto& shard : manifest.shards) parts.push_back({shard.file, shard.size});
  for (const auto& file : manifest.files)
    parts.push_back({fmt::format("{}/{}", detail::files_folder, file.name), file.size});
  return parts;
}

void require_size(const std::string& where, std::uint64_t size, const Part& part) {
  if (size != part.size)
    throw Error(ErrorCode::io, fmt::format("{} has {} bytes, but {} says {}: it is damaged", where, size,
                                           detail::manifest_name, part.size));
}

/// Removes what it watches unless told to keep it.
class FolderGuard {
public:
  explicit FolderGuard(fs::path folder) : folder_(std::move(folder)) {}
  FolderGuard(const FolderGuard&) = delete;
  FolderGuard& operator=(const FolderGuard&) = delete;
  ~FolderGuard() {
    std::error_code ignored;
    if (!kept_) fs::remove_all(folder_, ignored);
  }
  void keep() { kept_ = true; }

private:
  fs::path folder_;
  bool kept_ = false;
};

}  // namespace

void upload_checkpoint(const fs::path& folder, Storage& storage, const std::string& key) {
  check_key(key);
  const auto manifest = detail::read_manifest(folder);
  if (!manifest)
    throw Error(ErrorCode::io,
                fmt::format("{} is not a whole checkpoint: it has no {}", folder.string(), detail::manifest_name));
  if (storage.head(manifest_key(key)))
    throw Error(ErrorCode::io,
                fmt::format("{} holds a checkpoint \"{}\" already: remove it first, or choose another name",
                            storage.name(), key));
  const auto parts = parts_of(*manifest);
  for (const auto& part : parts)
    require_size((folder / part.name).string(), detail::File::open(folder / part.name).size(), part);
  parallel_for(parts.size(), objects_at_once,
               [&](std::size_t i) { storage.put_file(key + "/" + parts[i].name, folder / parts[i].name); });
  storage.put_file(manifest_key(key), folder / detail::manifest_name);
}

void download_checkpoint(Storage& storage, const std::string& key, const fs::path& folder) {
  check_key(key);
  if (!storage.head(manifest_key(key)))
    throw Error(ErrorCode::io, fmt::format("{} holds no whole checkpoint \"{}\"", storage.name(), key));
  std::error_code failure;
  if (fs::exists(folder, failure) && !fs::is_empty(folder, failure))
    throw Error(ErrorCode::io,
                fmt::format("{} is not an empty folder: a checkpoint is not written into it", folder.string()));
  const auto text = storage.get(manifest_key(key));
  const auto parts = parts_of(detail::parse_manifest(text, fmt::format("{}/{}", storage.name(), manifest_key(key))));
  FolderGuard guard(folder);
  detail::make_folder(folder);
  for (const auto& part : parts) {
    check_key(part.name);  // a name with ".." must not lead out of the folder
    detail::make_folder((folder / part.name).parent_path());
  }
  parallel_for(parts.size(), objects_at_once, [&](std::size_t i) {
    storage.get_file(key + "/" + parts[i].name, folder / parts[i].name);
    require_size(parts[i].name, fs::file_size(folder / parts[i].name), parts[i]);
  });
  detail::NewFile manifest(folder / detail::manifest_name);
  manifest.write(text, 0);
  manifest.commit();
  guard.keep();
}

std::vector<StoredCheckpoint> list_checkpoints(Storage& storage, const std::string& prefix) {
  const auto objects = storage.list(prefix);
  const auto ending = fmt::format("/{}", detail::manifest_name);
  std::vector<StoredCheckpoint> found;
  for (const auto& object : objects) {
    if (!object.key.ends_with(ending)) continue;
    StoredCheckpoint checkpoint{object.key.substr(0, object.key.size() - ending.size())};
    const auto begin = checkpoint.key + "/";
    const auto by_key = [](const ObjectInfo& left, const std::string& right) { return left.key < right; };
    auto file = std::lower_bound(objects.begin(), objects.end(), begin, by_key);
    for (; file != objects.end() && file->key.starts_with(begin); ++file) checkpoint.bytes += file->size;
    found.push_back(std::move(checkpoint));
  }
  return found;
}

void remove_checkpoint(Storage& storage, const std::string& key) {
  check_key(key);
  storage.remove(manifest_key(key));
  const auto objects = storage.list(key + "/");
  parallel_for(objects.size(), objects_at_once, [&](std::size_t i) { storage.remove(objects[i].key); });
}

void remove_unfinished(Storage& storage, const std::string& key) {
  check_key(key);
  if (!storage.head(manifest_key(key))) remove_checkpoint(storage, key);
}

}  // namespace troupe::storage
