// SPDX-License-Identifier: Apache-2.0
// Checkpoints on disk, as Checkpoint shows them.
#include "checkpoint/folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "checkpoint/shard_writer.hpp"
#include "runtime/base/system_error.hpp"

namespace troupe {
namespace detail {

std::shared_ptr<const CheckpointFolder> CheckpointFolder::open(const std::filesystem::path& path) {
  auto manifest = read_manifest(path);
  if (!manifest)
    throw Error(ErrorCode::io, fmt::format("{} holds no checkpoint: {}", path.string(),
                                           std::filesystem::exists(path)
                                               ? "it has no manifest.json, so it is another folder, or saving was not "
                                                 "finished; take an older checkpoint"
                                               : "there is no such folder; check the path"));
  return std::shared_ptr<const CheckpointFolder>(new CheckpointFolder(path, *std::move(manifest), false));
}

std::shared_ptr<const CheckpointFolder> CheckpointFolder::of_files(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path))
    throw Error(ErrorCode::io, fmt::format("{} is no folder, so it cannot be a checkpoint", path.string()));
  Manifest manifest;
  manifest.has_files = true;
  return std::shared_ptr<const CheckpointFolder>(new CheckpointFolder(path, std::move(manifest), true));
}

std::shared_ptr<const ShardReader> CheckpointFolder::reader(int rank) const {
  const auto& info = manifest_.shards.at(static_cast<std::size_t>(rank));
  const std::lock_guard lock(mutex_);
  auto& reader = readers_[static_cast<std::size_t>(rank)];
  if (!reader) reader = ShardReader::open(File::open(path_ / info.file), info, true);
  return reader;
}

void CheckpointFolder::verify() const {
  for (int rank = 0; rank < parts(); ++rank) {
    const auto shard = reader(rank);
    (void)shard->checkpoint();
    shard->verify();
  }
  for (const auto& file : manifest_.files) check_file(files(), file);
}

Checkpoint CheckpointFolder::saved_part(int rank) const { return reader(rank)->checkpoint(); }

Checkpoint CheckpointFolder::part(int rank, int world_size) const {
  if (rank < 0 || rank >= world_size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no rank {} among {}: ranks count from 0", rank, world_size));
  Checkpoint result;
  if (!manifest_.has_files) {
    if (parts() == world_size) {
      result = saved_part(rank);
    } else {
      std::vector<Checkpoint> saved;
      for (int part = 0; part < parts(); ++part) saved.push_back(saved_part(part));
      result = reshard(saved, rank, world_size);
    }
  }
  result.folder_ = shared_from_this();
  return result;
}

namespace {

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void require_fresh(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder) && !(std::filesystem::is_directory(folder) && std::filesystem::is_empty(folder)))
    throw Error(ErrorCode::io, fmt::format("{} is there already, and a checkpoint overwrites nothing: choose another "
                                           "path, or remove it",
                                           folder.string()));
}

void make_fresh_folder(const std::filesystem::path& folder) {
  require_fresh(folder);
  make_folder(folder);
}

void commit_alone(const std::filesystem::path& folder, const ShardInfo& shard) {
  Manifest manifest;
  manifest.id = 1;
  manifest.timestamp = now();
  manifest.shards.push_back(shard);
  commit(folder, manifest);
}

}  // namespace detail

Checkpoint Checkpoint::from_path(const std::filesystem::path& folder) {
  return detail::CheckpointFolder::open(folder)->part(0, 1);
}

Checkpoint Checkpoint::from_directory(const std::filesystem::path& folder) {
  if (detail::is_saved(folder)) return from_path(folder);
  return detail::CheckpointFolder::of_files(folder)->part(0, 1);
}

std::filesystem::path Checkpoint::path() const { return folder_ ? folder_->path() : std::filesystem::path(); }

bool Checkpoint::has_files() const { return folder_ && folder_->manifest().has_files; }

int Checkpoint::world_size() const { return folder_ ? std::max(folder_->parts(), 1) : 1; }

Checkpoint Checkpoint::part(int rank, int world_size) const {
  return folder_ ? folder_->part(rank, world_size) : detail::reshard({*this}, rank, world_size);
}

void Checkpoint::to_directory(const std::filesystem::path& folder) const {
  detail::require_fresh(folder);
  if (has_files()) {
    if (std::filesystem::exists(folder)) std::filesystem::remove(folder);
    if (folder_->is_plain())
      detail::copy_files(folder_->files(), folder);
    else
      detail::copy_files_checked(folder_->files(), folder, folder_->manifest().files);
    return;
  }
  detail::make_folder(folder);
  detail::commit_alone(folder, detail::write_shard(folder / detail::shard_name(0, 0), *this, {}));
}

CheckpointDirectory Checkpoint::as_directory() const {
  if (folder_) {
    folder_->verify();
    return {has_files() ? folder_->files() : folder_->path(), false};
  }
  auto pattern = (std::filesystem::temp_directory_path() / "troupe_checkpoint_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw detail::io_error("cannot make the folder", pattern, errno);
  CheckpointDirectory result(pattern, true);
  to_directory(pattern);
  return result;
}

CheckpointDirectory::~CheckpointDirectory() {
  std::error_code ignored;
  if (is_temporary_) std::filesystem::remove_all(path_, ignored);
}

}  // namespace troupe
