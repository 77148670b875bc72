// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/local_storage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <troupe/error.hpp>

#include "runtime/base/system_error.hpp"

namespace troupe::storage {
namespace fs = std::filesystem;
using detail::File;
using detail::NewFile;
namespace {

void copy_file(const File& from, NewFile& to) {
  std::string buffer(1 << 20, '\0');
  const auto size = from.size();
  for (std::uint64_t offset = 0; offset < size;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), size - offset));
    from.read_at(offset, buffer.data(), count);
    to.write(std::string_view(buffer).substr(0, count), offset);
    offset += count;
  }
}

}  // namespace

LocalStorage::LocalStorage(fs::path root) : root_(std::move(root)) { detail::make_folder(root_); }

fs::path LocalStorage::place(const std::string& key) const {
  check_key(key);
  return root_ / key;
}

detail::NewFile LocalStorage::create(const std::string& key) {
  const auto path = place(key);
  const std::lock_guard lock(folders_);
  detail::make_folder(path.parent_path());
  return detail::NewFile(path);
}

void LocalStorage::put(const std::string& key, std::string_view bytes) {
  auto file = create(key);
  file.write(bytes, 0);
  file.commit();
}

void LocalStorage::put_file(const std::string& key, const fs::path& file) {
  const auto source = File::open(file);
  auto target = create(key);
  copy_file(source, target);
  target.commit();
}

std::string LocalStorage::get(const std::string& key, const Range& range) {
  const auto file = File::open(place(key));
  const auto size = file.size();
  const auto length = range.length.value_or(size - std::min(size, range.offset));
  if (range.offset > size || length > size - range.offset)
    throw Error(ErrorCode::io, fmt::format("{} has {} bytes; bytes {} to {} of it were asked for", file.path().string(),
                                           size, range.offset, range.offset + length));
  std::string bytes(length, '\0');
  file.read_at(range.offset, bytes.data(), bytes.size());
  return bytes;
}

void LocalStorage::get_file(const std::string& key, const fs::path& file) {
  const auto source = File::open(place(key));
  NewFile target(file);
  copy_file(source, target);
  target.commit();
}

std::vector<ObjectInfo> LocalStorage::list(const std::string& prefix) {
  std::vector<ObjectInfo> found;
  try {
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      if (!entry.is_regular_file() || detail::is_temporary(entry.path())) continue;
      auto key = entry.path().lexically_relative(root_).generic_string();
      if (key.starts_with(prefix)) found.push_back({std::move(key), entry.file_size()});
    }
  } catch (const fs::filesystem_error& error) {
    throw detail::io_error("cannot list the folder", root_, error.code().value());
  }
  std::sort(found.begin(), found.end(), [](const ObjectInfo& a, const ObjectInfo& b) { return a.key < b.key; });
  return found;
}

std::optional<ObjectInfo> LocalStorage::head(const std::string& key) {
  const auto path = place(key);
  std::error_code failure;
  if (!fs::is_regular_file(path, failure)) return std::nullopt;
  return ObjectInfo{key, File::open(path).size()};
}

void LocalStorage::remove(const std::string& key) {
  auto path = place(key);
  const std::lock_guard lock(folders_);
  std::error_code failure;
  if (!fs::is_regular_file(path, failure)) return;
  if (!fs::remove(path, failure) && failure) throw detail::io_error("cannot remove the file", path, failure.value());
  // Folders are only a part of keys: the last object takes them along. One that is not empty stays.
  for (path = path.parent_path(); path != root_ && fs::remove(path, failure); path = path.parent_path()) {
  }
}

}  // namespace troupe::storage
