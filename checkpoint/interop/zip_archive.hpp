// SPDX-License-Identifier: Apache-2.0
// Zip files as torch.save() makes them: entries that are stored, not compressed.
#pragma once

#include <zip.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/new_file.hpp"

namespace troupe::detail {

class ZipReader {
public:
  /// Throws io for a file that is no zip archive.
  explicit ZipReader(const std::filesystem::path& path);

  /// The folder that all entries lie in, such as "archive/". Throws io when there is no `name` in one.
  std::string folder_with(std::string_view name) const;
  /// Bytes of an entry, or nothing if there is none. Throws io for one that is compressed (its size would be a promise)
  /// or encrypted.
  std::optional<std::uint64_t> size(const std::string& name) const;
  /// Reads all of an entry and checks its CRC; throws io.
  void read(const std::string& name, char* out, std::uint64_t size) const;
  std::string read(const std::string& name, std::uint64_t most) const;

private:
  [[noreturn]] void refuse(const std::string& why) const;

  std::filesystem::path path_;
  std::unique_ptr<zip_t, decltype(&zip_discard)> archive_;
};

class ZipWriter {
public:
  /// Throws io. The file appears with finish().
  explicit ZipWriter(const std::filesystem::path& path);
  /// `bytes` must live until finish(). They begin at a multiple of 64 in the file, as torch wants to map them.
  void add(const std::string& name, std::string_view bytes);
  void finish();

private:
  [[noreturn]] void fail(const char* what) const;

  NewFile file_;
  std::unique_ptr<zip_t, decltype(&zip_discard)> archive_;
  std::uint64_t end_ = 0;
};

}  // namespace troupe::detail
