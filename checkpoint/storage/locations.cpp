// SPDX-License-Identifier: Apache-2.0
// <troupe/storage.hpp>: one location instead of a storage and a key.
#include <fmt/format.h>

#include <memory>
#include <string_view>
#include <utility>

#include <troupe/error.hpp>
#include <troupe/storage.hpp>

#include "checkpoint/storage/transfer.hpp"

namespace troupe {
namespace {

/// The part of a location that names things, and the query behind it.
std::pair<std::string, std::string> split_query(const std::string& location) {
  const auto question = location.starts_with("s3://") ? location.find('?') : std::string::npos;
  auto path = location.substr(0, question);
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return {std::move(path), question == std::string::npos ? "" : location.substr(question)};
}

struct Place {
  std::unique_ptr<storage::Storage> storage;
  std::string key;
};

/// The storage that holds the checkpoint, and its key there: the last part of the path.
Place open_place(const std::string& location) {
  const auto [path, query] = split_query(location);
  const auto slash = path.rfind('/');
  const bool is_s3 = location.starts_with("s3:");
  if (path.empty() || path == "/" ||
      (is_s3 && (slash == std::string::npos || slash < std::string_view("s3://b").size())))
    throw Error(
        ErrorCode::invalid_option,
        fmt::format("\"{}\" does not name a checkpoint: the name is missing, as in s3://bucket/run/checkpoint_000001",
                    location));
  const auto parent = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  return {storage::open_storage(parent + query), path.substr(slash == std::string::npos ? 0 : slash + 1)};
}

}  // namespace

void upload_checkpoint(const std::filesystem::path& folder, const std::string& location) {
  const auto [storage, key] = open_place(location);
  storage::upload_checkpoint(folder, *storage, key);
}

void download_checkpoint(const std::string& location, const std::filesystem::path& folder) {
  const auto [storage, key] = open_place(location);
  storage::download_checkpoint(*storage, key, folder);
}

std::vector<StoredCheckpoint> list_stored_checkpoints(const std::string& location) {
  const auto [path, query] = split_query(location);
  std::vector<StoredCheckpoint> found;
  for (const auto& checkpoint : storage::list_checkpoints(*storage::open_storage(location)))
    found.push_back({fmt::format("{}/{}{}", path, checkpoint.key, query), checkpoint.bytes});
  return found;
}

void remove_stored_checkpoint(const std::string& location) {
  const auto [storage, key] = open_place(location);
  storage::remove_checkpoint(*storage, key);
}

}  // namespace troupe
