// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/inspect.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/folder.hpp"
#include "checkpoint/scan.hpp"
#include "runtime/base/table.hpp"

namespace troupe::detail {
namespace {

using Rows = std::vector<std::vector<std::string>>;
constexpr std::size_t widest_value = 60;

std::string show_size(std::uint64_t size) {
  constexpr std::uint64_t unit = 1024;
  if (size < unit) return fmt::format("{} B", size);
  auto value = static_cast<double>(size);
  const char* names = "KMGTPE";
  for (value /= unit; value >= unit; value /= unit) ++names;
  return fmt::format("{:.1f} {}iB", value, *names);
}

std::string show_time(std::int64_t timestamp) {
  const auto time = static_cast<std::time_t>(timestamp);
  std::tm local{};
  if (timestamp == 0 || ::localtime_r(&time, &local) == nullptr) return "-";
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", local);
}

std::uint64_t size_of_all(const Manifest& manifest) {
  std::uint64_t sum = 0;
  for (const auto& shard : manifest.shards) sum += shard.size;
  for (const auto& file : manifest.files) sum += file.size;
  return sum;
}

std::string shorten(std::string text) {
  if (text.size() > widest_value) text = text.substr(0, widest_value - 3) + "...";
  return text;
}

/// A run's folder holds its checkpoints in one of the first name, and the newest, if it is not among the best, in the
/// second. Those of a folder, the newest first.
std::vector<CommittedCheckpoint> find_checkpoints(const std::filesystem::path& folder,
                                                  std::vector<std::string>& damaged) {
  std::error_code ignored;
  std::vector<CommittedCheckpoint> found;
  for (const auto* name : {"latest", "checkpoints"})
    if (std::filesystem::is_directory(folder / name, ignored))
      for (auto& one : scan(folder / name, &damaged)) found.push_back(std::move(one));
  if (found.empty() && damaged.empty()) return scan(folder, &damaged);
  std::stable_sort(found.begin(), found.end(), [](const CommittedCheckpoint& left, const CommittedCheckpoint& right) {
    return left.manifest.id > right.manifest.id;
  });
  return found;
}

/// "checkpoint_000003", or "latest/checkpoint_000004".
std::string show_name(const std::filesystem::path& path) {
  const auto name = path.filename().string();
  return path.parent_path().filename() == "latest" ? "latest/" + name : name;
}

int nothing_in(const std::filesystem::path& folder, std::ostream& out) {
  out << fmt::format("there is no checkpoint in {}\n", folder.string());
  return 1;
}

void add_rows(Rows& rows, const std::string& name, const CheckpointItem& item) {
  std::ostringstream text;
  switch (item.kind()) {
    case CheckpointItem::Kind::tensor: {
      const auto tensor = item.as<TensorData>();
      rows.push_back({name, tensor.describe(), show_size(tensor.bytes()), ""});
      return;
    }
    case CheckpointItem::Kind::dictionary:
      if (item.size() == 0) rows.push_back({name, "dictionary", "", "{}"});
      for (const auto& [key, value] : item.entries())
        add_rows(rows, name.empty() ? key : fmt::format("{}.{}", name, key), value);
      return;
    case CheckpointItem::Kind::list:
      for (std::size_t index = 0; index < item.size(); ++index)
        add_rows(rows, fmt::format("{}[{}]", name, index), item.at(index));
      return;
    case CheckpointItem::Kind::packed:
      rows.push_back({name, fmt::format("packed {}, version {}", item.packed_type(), item.packed_version()),
                      show_size(item.packed_bytes({}).size()), ""});
      return;
    case CheckpointItem::Kind::value:
      break;
  }
  text << item;
  rows.push_back({name, item.is_list() ? "list" : item.to_json().type_name(), "", shorten(text.str())});
}

/// "ok", or why not.
std::string check(const std::filesystem::path& path) {
  try {
    CheckpointFolder::open(path)->verify();
    return "ok";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

int list_checkpoints(const std::filesystem::path& folder, std::ostream& out) {
  std::vector<std::string> damaged;
  const auto found = find_checkpoints(folder, damaged);
  if (found.empty() && damaged.empty()) return nothing_in(folder, out);
  Rows rows;
  for (const auto& [path, manifest] : found)
    rows.push_back({show_name(path), show_time(manifest.timestamp),
                    manifest.has_files ? "files" : std::to_string(manifest.shards.size()),
                    show_size(size_of_all(manifest)), shorten(manifest.metrics.dump())});
  out << format_table({"checkpoint", "saved", "ranks", "size", "metrics"}, rows);
  for (const auto& text : damaged) out << text << '\n';
  return damaged.empty() ? 0 : 1;
}

int show_checkpoint(const std::filesystem::path& folder, std::ostream& out) {
  const auto opened = CheckpointFolder::open(folder);
  const auto& manifest = opened->manifest();
  out << format_table({"checkpoint", folder.string()}, {{"number", std::to_string(manifest.id)},
                                                        {"saved", show_time(manifest.timestamp)},
                                                        {"attempt", fmt::format("{:#x}", manifest.generation)},
                                                        {"ranks", std::to_string(manifest.shards.size())},
                                                        {"size", show_size(size_of_all(manifest))},
                                                        {"metrics", manifest.metrics.dump()}})
      << '\n';
  Rows rows;
  if (manifest.has_files) {
    for (const auto& file : manifest.files)
      rows.push_back({file.name, show_size(file.size), fmt::format("{:08x}", file.crc)});
    out << format_table({"file", "size", "crc32c"}, rows);
  } else {
    add_rows(rows, "", opened->part(0, 1));
    out << format_table({"key", "type", "size", "value"}, rows);
  }
  return 0;
}

int verify_checkpoints(const std::filesystem::path& folder, std::ostream& out) {
  std::vector<std::filesystem::path> paths;
  std::vector<std::string> damaged;
  if (std::filesystem::exists(folder / manifest_name)) {
    paths.push_back(folder);
  } else {
    for (const auto& one : find_checkpoints(folder, damaged)) paths.push_back(one.path);
  }
  if (paths.empty() && damaged.empty()) return nothing_in(folder, out);
  int code = damaged.empty() ? 0 : 1;
  Rows rows;
  for (const auto& path : paths) {
    auto result = check(path);
    if (result != "ok") code = 1;
    rows.push_back({show_name(path), std::move(result)});
  }
  out << format_table({"checkpoint", "state"}, rows);
  for (const auto& text : damaged) out << text << '\n';
  return code;
}

}  // namespace troupe::detail
