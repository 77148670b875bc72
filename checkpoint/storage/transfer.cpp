// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/transfer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include <troupe/error.hpp>

#include "checkpoint/new_file.hpp"
#include "checkpoint/storage/parallel.hpp"
#include "runtime/base/system_error.hpp"

namespace troupe::storage {
namespace fs = std::filesystem;
namespace {

/// Objects at once; each may travel in several parts.
constexpr int objects_at_once = 4;

std::string manifest_key(const std::string& key) { return fmt::format("{}/{}", key, manifest_name); }

/// Names of the files in a folder but the manifest, relative to it.
std::vector<std::string> files_of(const fs::path& folder) {
  std::vector<std::string> names;
  try {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_directory() && !entry.is_symlink()) continue;
      const auto name = entry.path().lexically_relative(folder).generic_string();
      if (name == manifest_name || detail::is_temporary(entry.path())) continue;
      if (entry.is_symlink() || !entry.is_regular_file())
        throw Error(ErrorCode::io,
                    fmt::format("{} is neither a file nor a folder: it cannot be stored with a checkpoint",
                                entry.path().string()));
      names.push_back(name);
    }
  } catch (const fs::filesystem_error& error) {
    throw detail::io_error("cannot list the folder", folder, error.code().value());
  }
  std::sort(names.begin(), names.end());
  return names;
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
  const auto manifest = folder / manifest_name;
  if (!fs::is_regular_file(manifest))
    throw Error(ErrorCode::io,
                fmt::format("{} is not a whole checkpoint: it has no file \"{}\"", folder.string(), manifest_name));
  if (storage.head(manifest_key(key)))
    throw Error(ErrorCode::io,
                fmt::format("{} holds a checkpoint \"{}\" already: remove it first, or choose another name",
                            storage.name(), key));
  const auto names = files_of(folder);
  parallel_for(names.size(), objects_at_once,
               [&](std::size_t i) { storage.put_file(key + "/" + names[i], folder / names[i]); });
  storage.put_file(manifest_key(key), manifest);
}

void download_checkpoint(Storage& storage, const std::string& key, const fs::path& folder) {
  check_key(key);
  const auto objects = storage.list(key + "/");
  const auto is_manifest = [&](const ObjectInfo& object) { return object.key == manifest_key(key); };
  if (std::none_of(objects.begin(), objects.end(), is_manifest))
    throw Error(ErrorCode::io, fmt::format("{} holds no whole checkpoint \"{}\"", storage.name(), key));
  std::error_code failure;
  if (fs::exists(folder, failure) && !fs::is_empty(folder, failure))
    throw Error(ErrorCode::io,
                fmt::format("{} is not an empty folder: a checkpoint is not written into it", folder.string()));
  FolderGuard guard(folder);
  for (const auto& object : objects) {
    check_key(object.key);  // a key with ".." must not lead out of the folder
    const auto file = folder / object.key.substr(key.size() + 1);
    fs::create_directories(file.parent_path(), failure);
    if (failure) throw detail::io_error("cannot make the folder", file.parent_path(), failure.value());
  }
  const auto fetch = [&](const ObjectInfo& object) {
    storage.get_file(object.key, folder / object.key.substr(key.size() + 1));
  };
  parallel_for(objects.size(), objects_at_once, [&](std::size_t i) {
    if (!is_manifest(objects[i])) fetch(objects[i]);
  });
  fetch({manifest_key(key)});
  guard.keep();
}

std::vector<StoredCheckpoint> list_checkpoints(Storage& storage, const std::string& prefix) {
  const auto objects = storage.list(prefix);
  const auto ending = fmt::format("/{}", manifest_name);
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

}  // namespace troupe::storage
