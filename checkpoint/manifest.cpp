// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "checkpoint/crc32c.hpp"
#include "checkpoint/file.hpp"
#include "checkpoint/shard_format.hpp"

namespace troupe::detail {
namespace {

constexpr int manifest_version = 1;
constexpr std::size_t longest_manifest = std::size_t{64} << 20;

constexpr std::string_view opening_start = "{\"crc32c\":\"";

/// The text starts with this, and the checksum covers all that follows it: byte for byte, and still JSON.
std::string opening(std::string_view rest) {
  return fmt::format("{}{:08x}\",", opening_start, crc32c(rest.data(), rest.size()));
}
const std::size_t opening_size = opening({}).size();

/// A name that leads to a file below the folder, and nowhere else.
bool is_safe(const std::string& name) {
  const std::filesystem::path path(name);
  return !name.empty() && path.is_relative() && name.find('\0') == std::string::npos &&
         std::none_of(path.begin(), path.end(),
                      [](const auto& part) { return part.empty() || part == ".." || part == "."; });
}

void check(const Manifest& manifest, const std::filesystem::path& where) {
  int rank = 0;
  for (const auto& shard : manifest.shards) {
    if (shard.rank != rank++) throw damaged(where, "its shards are not those of the ranks 0, 1, 2, ...");
    if (!is_safe(shard.file) || shard.file.find('/') != std::string::npos)
      throw damaged(where, fmt::format("\"{}\" is not the name of a shard", shard.file));
  }
  if (manifest.has_files != manifest.shards.empty()) throw damaged(where, "it must have either shards or files");
  for (const auto& file : manifest.files)
    if (!is_safe(file.name)) throw damaged(where, fmt::format("\"{}\" is not the name of a file in it", file.name));
}

}  // namespace

bool is_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

std::string write_manifest(const Manifest& manifest) {
  Json json{{"format", manifest_version},       {"id", manifest.id},           {"generation", manifest.generation},
            {"_timestamp", manifest.timestamp}, {"metrics", manifest.metrics}, {"has_files", manifest.has_files},
            {"shards", Json::array()},          {"files", Json::array()}};
  for (const auto& shard : manifest.shards)
    json["shards"].push_back({{"file", shard.file}, {"rank", shard.rank}, {"size", shard.size}, {"crc32c", shard.crc}});
  for (const auto& file : manifest.files)
    json["files"].push_back({{"name", file.name}, {"size", file.size}, {"crc32c", file.crc}});
  const auto rest = json.dump(1, ' ', false, Json::error_handler_t::replace).substr(1) + "\n";
  return opening(rest) + rest;
}

Manifest parse_manifest(std::string_view text, const std::filesystem::path& where) {
  if (text.size() <= opening_size) throw damaged(where, "it is too short");
  const auto rest = text.substr(opening_size);
  if (text.substr(0, opening_size) != opening(rest)) throw damaged(where, "it does not match its checksum");
  Manifest manifest;
  try {
    const auto json = Json::parse(text);
    if (json.at("format").get<int>() != manifest_version)
      throw damaged(where,
                    fmt::format("its format is {}, this program reads {}", json.at("format").dump(), manifest_version));
    manifest.id = json.at("id");
    manifest.generation = json.at("generation");
    manifest.timestamp = json.at("_timestamp");
    manifest.metrics = json.at("metrics");
    manifest.has_files = json.at("has_files");
    for (const auto& shard : json.at("shards"))
      manifest.shards.push_back({shard.at("file"), shard.at("rank"), shard.at("size"), shard.at("crc32c")});
    for (const auto& file : json.at("files"))
      manifest.files.push_back({file.at("name"), file.at("size"), file.at("crc32c")});
  } catch (const Json::exception& error) {
    throw damaged(where, error.what());
  }
  check(manifest, where);
  return manifest;
}

void commit(const std::filesystem::path& folder, const Manifest& manifest, const std::function<void()>& may_commit) {
  static std::atomic<unsigned> counter{0};
  const auto name = folder / manifest_name;
  const auto text = write_manifest(manifest);
  // What cannot be read must not be committed.
  if (text.size() > longest_manifest)
    throw Error(
        ErrorCode::too_large,
        fmt::format("{} would have {} bytes, and {} is the limit: the metrics reported with the checkpoint belong "
                    "into the checkpoint itself, or it has too many files",
                    name.string(), text.size(), longest_manifest));
  parse_manifest(text, name);
  const auto temporary = folder / fmt::format(".manifest.{}.{}.tmp", ::getpid(), ++counter);
  try {
    auto file = File::create(temporary);
    file.write_at(0, text.data(), text.size());
    file.sync();
    file.close();
    sync_folder(folder);  // the names of the shards, before one leads to them
    may_commit();
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  try {
    rename_durably(temporary, name);
    sync_folder(folder.has_parent_path() ? folder.parent_path() : ".");
  } catch (...) {
    ::unlink(temporary.c_str());
    ::unlink(name.c_str());  // nobody may take for durable what may not be
    throw;
  }
}

bool is_saved(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  const auto path = folder / manifest_name;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  const auto file = File::open(path);
  std::string start(std::min<std::uint64_t>(file.size(), opening_start.size()), '\0');
  file.read_at(0, start.data(), start.size());
  if (start == opening_start) return true;
  // One of ours that was damaged there lies beside shards, or beside nothing but the folder of files.
  std::size_t others = 0;
  bool has_shard = false;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const auto name = entry.path().filename().string();
    has_shard |= name.starts_with("shard_") && name.ends_with(".bin");
    others += name != manifest_name && name != files_folder ? 1 : 0;
  }
  return has_shard || (others == 0 && fs::is_directory(folder / files_folder, ignored));
}

std::optional<Manifest> read_manifest(const std::filesystem::path& folder) {
  const auto path = folder / manifest_name;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return parse_manifest(read_whole(path, longest_manifest), path);
}

}  // namespace troupe::detail
