// SPDX-License-Identifier: Apache-2.0
// troupe checkpoint export and import: checkpoints as files of other libraries, and back.
#include "runtime/command_line/convert.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>
#include <troupe/checkpoint.hpp>
#include <troupe/error.hpp>
#include <troupe/storage.hpp>

#include "runtime/base/system_error.hpp"

namespace troupe::detail {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string from;
  std::string to;
  std::string format;
  std::string key;
  bool force = false;
};

struct Format {
  std::string_view name;
  std::string_view suffix;
};
constexpr std::array<Format, 3> formats{{{"pt", ".pt"}, {"pt", ".pth"}, {"safetensors", ".safetensors"}}};

/// What --format says, or else the file's name.
std::string format_of(const Arguments& arguments, const fs::path& file) {
  if (!arguments.format.empty()) return arguments.format;
  for (const auto& format : formats)
    if (file.extension() == format.suffix) return std::string(format.name);
  throw CLI::ValidationError(
      fmt::format("the name {} does not tell the format: give --format pt or --format safetensors", file.string()));
}

void count_tensors(const CheckpointItem& item, std::size_t& count) {
  if (item.is_tensor()) ++count;
  if (item.is_dictionary())
    for (const auto& [key, value] : item.entries()) count_tensors(value, count);
  if (item.kind() == CheckpointItem::Kind::list)
    for (std::size_t i = 0; i < item.size(); ++i) count_tensors(item.at(i), count);
}

int say(const std::string& path, const Checkpoint& checkpoint) {
  std::size_t tensors = 0;
  count_tensors(checkpoint, tensors);
  std::cout << fmt::format("{}: {} {}, {} bytes\n", path, tensors, tensors == 1 ? "tensor" : "tensors",
                           checkpoint.bytes());
  return 0;
}

/// The dictionary under "model" or "model.encoder".
Checkpoint part_under(const Checkpoint& checkpoint, std::string_view key) {
  if (key.empty()) return checkpoint;
  // Keys may hold dots themselves: the longest that is there wins.
  for (auto end = key.size(); end != std::string_view::npos && end > 0; end = key.rfind('.', end - 1)) {
    const auto* found = checkpoint.find(key.substr(0, end));
    if (found == nullptr || !found->is_dictionary()) continue;
    return part_under(found->as<Checkpoint>(), end == key.size() ? "" : key.substr(end + 1));
  }
  (void)checkpoint[key].as<Checkpoint>();  // throws, and names the keys that are there
  return {};
}

/// Goes with its scope.
class TemporaryFolder {
public:
  TemporaryFolder() {
    auto pattern = (fs::temp_directory_path() / "troupe_export_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw io_error("cannot make the folder", pattern, errno);
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

private:
  fs::path path_;
};

int export_checkpoint(const Arguments& arguments) {
  const auto format = format_of(arguments, arguments.to);
  if (fs::exists(arguments.to) && !arguments.force)
    throw Error(ErrorCode::io, fmt::format("{} is there already: --force replaces it", arguments.to));
  const TemporaryFolder temporary;
  auto from = fs::path(arguments.from);
  if (arguments.from.starts_with("s3://")) {
    from = temporary.path() / "checkpoint";
    download_checkpoint(arguments.from, from);
  }
  const auto checkpoint = Checkpoint::from_path(from);
  if (checkpoint.has_files())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is a folder of files, not of tensors; they are in its \"files\"", arguments.from));
  const auto part = part_under(checkpoint, arguments.key);
  if (format == "pt")
    part.export_torch(arguments.to);
  else
    part.export_safetensors(arguments.to);
  return say(arguments.to, part);
}

int import_checkpoint(const Arguments& arguments) {
  auto checkpoint = format_of(arguments, arguments.from) == "pt" ? Checkpoint::import_torch(arguments.from)
                                                                 : Checkpoint::import_safetensors(arguments.from);
  if (!arguments.key.empty()) {
    Checkpoint outer;
    outer.set(arguments.key, checkpoint);
    checkpoint = outer;
  }
  checkpoint.to_directory(arguments.to);
  return say(arguments.to, checkpoint);
}

}  // namespace

void add_convert_commands(CLI::App& checkpoint, std::function<int()>& run) {
  const auto add = [&](const char* name, const char* help, int (*convert)(const Arguments&)) {
    auto arguments = std::make_shared<Arguments>();
    auto* command = checkpoint.add_subcommand(name, help);
    command->add_option("--format", arguments->format, "pt or safetensors; otherwise the file's name tells")
        ->check(CLI::IsMember({"pt", "safetensors"}));
    command->callback([&run, arguments, convert] { run = [arguments, convert] { return convert(*arguments); }; });
    return std::pair(command, arguments);
  };
  {
    const auto [command, arguments] =
        add("export", "Writes a checkpoint as a file that Python opens", export_checkpoint);
    command
        ->add_option("PATH", arguments->from,
                     "The checkpoint's folder, or s3://bucket/run/checkpoint_000001?endpoint=...")
        ->required();
    command->add_option("OUT", arguments->to, "The new file, such as model.pt or model.safetensors")->required();
    command->add_option("--key", arguments->key, "Only the dictionary under this key, such as model");
    command->add_flag("--force", arguments->force, "Replace OUT if it is there");
  }
  const auto [command, arguments] =
      add("import", "Makes a checkpoint of a file of torch.save() or safetensors", import_checkpoint);
  command->add_option("FILE", arguments->from, "The file")->required();
  command->add_option("OUT", arguments->to, "The checkpoint's new folder")->required();
  command->add_option("--key", arguments->key, "Put it under this key, such as model");
}

}  // namespace troupe::detail
