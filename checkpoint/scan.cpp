// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/scan.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "checkpoint/file.hpp"

namespace troupe::detail {
namespace {

constexpr std::string_view prefix = "checkpoint_";
constexpr std::size_t fewest_digits = 6;

bool is_temporary(const std::string& name) { return name.starts_with('.') && name.ends_with(".tmp"); }

void remove_temporaries(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.is_regular_file() && is_temporary(entry.path().filename().string()))
      std::filesystem::remove(entry.path());
}

}  // namespace

std::string checkpoint_name(std::uint64_t id) { return fmt::format("{}{:06}", prefix, id); }

std::optional<std::uint64_t> checkpoint_id(const std::string& name) {
  if (!name.starts_with(prefix) || name.size() < prefix.size() + fewest_digits) return std::nullopt;
  std::uint64_t id = 0;
  const auto* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, id);
  return error == std::errc() && stop == end && checkpoint_name(id) == name ? std::optional(id) : std::nullopt;
}

namespace {

std::vector<CommittedCheckpoint> find_committed(const std::filesystem::path& parent,
                                                std::vector<std::string>* damaged) {
  std::vector<CommittedCheckpoint> found;
  std::error_code ignored;
  if (!std::filesystem::is_directory(parent, ignored)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(parent)) {
    if (!checkpoint_id(entry.path().filename().string())) continue;
    try {
      if (auto manifest = read_manifest(entry.path())) found.push_back({entry.path(), *std::move(manifest)});
    } catch (const Error& error) {
      if (damaged != nullptr) damaged->push_back(error.what());
    }
  }
  std::sort(found.begin(), found.end(), [](const CommittedCheckpoint& left, const CommittedCheckpoint& right) {
    return std::pair(left.manifest.id, left.manifest.generation) >
           std::pair(right.manifest.id, right.manifest.generation);
  });
  return found;
}

void remove_uncommitted(const std::filesystem::path& parent) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(parent, ignored)) return;
  remove_temporaries(parent);
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(parent))
    if (entry.is_directory() && checkpoint_id(entry.path().filename().string())) folders.push_back(entry.path());
  for (const auto& folder : folders) {
    if (std::filesystem::exists(folder / manifest_name))
      remove_temporaries(folder);
    else
      std::filesystem::remove_all(folder);
  }
}

}  // namespace

std::vector<CommittedCheckpoint> scan(const std::filesystem::path& parent, std::vector<std::string>* damaged) {
  return as_io_errors([&] { return find_committed(parent, damaged); });
}

void sweep(const std::filesystem::path& parent) {
  as_io_errors([&] { remove_uncommitted(parent); });
}

void remove_checkpoint(const std::filesystem::path& folder) {
  const auto manifest = folder / manifest_name;
  if (::unlink(manifest.c_str()) != 0 && errno != ENOENT) throw io_error("cannot remove", manifest, errno);
  as_io_errors([&] {
    if (std::filesystem::exists(folder)) sync_folder(folder);
    std::filesystem::remove_all(folder);
  });
}

}  // namespace troupe::detail
