// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are a folder of the user's own files.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <utility>

#include "checkpoint/crc32c.hpp"
#include "checkpoint/file.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/shard_format.hpp"

namespace troupe::detail {
namespace {

/// Reads `from` to its end, writes it to `to` if there is one, and computes its checksum.
FileInfo pass(const std::filesystem::path& from, File* to) {
  const auto file = File::open(from);
  const auto size = file.size();
  const auto buffer = std::make_unique<std::byte[]>(block_size);
  FileInfo info{{}, size, 0};
  for (std::uint64_t offset = 0; offset < size; offset += block_size) {
    const auto part = std::min(block_size, size - offset);
    file.read_at(offset, buffer.get(), part);
    info.crc = crc32c(buffer.get(), part, info.crc);
    if (to != nullptr) to->write_at(offset, buffer.get(), part);
  }
  return info;
}

FileInfo copy_one(const std::filesystem::path& from, const std::filesystem::path& to) {
  auto copy = File::create(to);
  auto info = pass(from, &copy);
  copy.sync();
  copy.close();
  return info;
}

void compare(const FileInfo& expected, const FileInfo& found, const std::filesystem::path& path) {
  if (found.size != expected.size)
    throw damaged(path, fmt::format("it has {} bytes instead of {}", found.size, expected.size));
  if (found.crc != expected.crc) throw damaged(path, "its content does not match its checksum");
}

/// As the manifest has it, which is JSON.
std::string checked_name(const std::filesystem::path& name) {
  const auto text = name.generic_string();
  if (!is_utf8(text))
    throw Error(ErrorCode::io,
                fmt::format("the name of the file {} is not UTF-8, so no checkpoint can hold it: rename it",
                            Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)));
  return text;
}

std::vector<FileInfo> copy_tree(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::vector<FileInfo> files;
  make_folder(to);
  std::vector<std::filesystem::path> folders{to};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(from)) {
    const auto name = entry.path().lexically_relative(from);
    if (entry.is_directory() && !entry.is_symlink()) {
      make_folder(to / name);
      folders.push_back(to / name);
    } else if (entry.is_regular_file()) {
      auto text = checked_name(name);
      files.push_back(copy_one(entry.path(), to / name));
      files.back().name = std::move(text);
    } else {
      throw Error(ErrorCode::io, fmt::format("{} is neither a file nor a folder, so no checkpoint can hold it (nor a "
                                             "link to a folder): remove it from the folder that is saved",
                                             entry.path().string()));
    }
  }
  for (const auto& folder : folders) sync_folder(folder);
  return files;
}

}  // namespace

std::vector<FileInfo> copy_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  return as_io_errors([&] { return copy_tree(from, to); });
}

void copy_files_checked(const std::filesystem::path& from, const std::filesystem::path& to,
                        const std::vector<FileInfo>& files) {
  make_folder(to);
  for (const auto& file : files) {
    make_folder((to / file.name).parent_path());
    compare(file, copy_one(from / file.name, to / file.name), from / file.name);
  }
}

void check_file(const std::filesystem::path& folder, const FileInfo& file) {
  compare(file, pass(folder / file.name, nullptr), folder / file.name);
}

}  // namespace troupe::detail
