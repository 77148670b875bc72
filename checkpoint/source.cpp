// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/source.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

#include "checkpoint/file.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/shard_reader.hpp"
#include "checkpoint/shard_writer.hpp"
#include "runtime/base/system_error.hpp"

namespace troupe::detail {
namespace {

/// Marks binary JSON as the place of a checkpoint.
constexpr std::uint64_t place_subtype = 0x54;

}  // namespace

Json to_json(const CheckpointSource& source) {
  const Json place = {{"bytes", Json::binary({source.bytes.begin(), source.bytes.end()})},
                      {"folder", source.folder},
                      {"files", source.files}};
  return Json::binary(Json::to_msgpack(place), place_subtype);
}

std::optional<CheckpointSource> source_of_json(const Json& json) {
  if (!json.is_binary() || !json.get_binary().has_subtype() || json.get_binary().subtype() != place_subtype) return {};
  const auto place = Json::from_msgpack(json.get_binary(), true, false);
  if (!place.is_object() || !place.contains("bytes") || !place.contains("folder") || !place.contains("files"))
    return {};
  CheckpointSource source;
  const auto& bytes = place.at("bytes").get_binary();
  source.bytes.assign(bytes.begin(), bytes.end());
  source.folder = place.at("folder").get<std::string>();
  source.files = place.at("files").get<std::vector<std::string>>();
  return source;
}

std::string path_of(int descriptor) { return fmt::format("/proc/{}/fd/{}", ::getpid(), descriptor); }

MemoryShard::MemoryShard(const Checkpoint& state, int rank, std::uint64_t generation) {
  const int descriptor = ::memfd_create("troupe checkpoint", MFD_CLOEXEC);
  if (descriptor < 0) throw io_error("cannot make memory for a checkpoint", "memfd", errno);
  path_ = path_of(descriptor);
  File file(descriptor, path_);
  const auto info = write_shard(file, state, {rank, generation, false});
  reader_ = ShardReader::open(std::move(file), info);
}

MemoryShard::MemoryShard(const std::string& path) {
  auto file = File::open(path);
  path_ = path_of(file.descriptor());
  reader_ = ShardReader::open(std::move(file), std::nullopt);
}

Checkpoint MemoryShard::checkpoint() const { return reader_->checkpoint(); }

Checkpoint open_source(const CheckpointSource& source, int rank, int world_size) {
  if (!source.bytes.empty()) return decode(source.bytes);
  if (!source.folder.empty()) return Checkpoint::from_directory(source.folder).part(rank, world_size);
  if (source.files.size() == 1) return MemoryShard(source.files.front()).checkpoint();
  std::vector<Checkpoint> parts;
  for (const auto& file : source.files) parts.push_back(MemoryShard(file).checkpoint());
  if (parts.size() == static_cast<std::size_t>(world_size)) return parts.at(static_cast<std::size_t>(rank));
  return reshard(parts, rank, world_size);
}

}  // namespace troupe::detail
