// SPDX-License-Identifier: Apache-2.0
// Files that appear when they are whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "checkpoint/file.hpp"

namespace troupe::detail {

/// A file written beside its place. commit() makes it durable and renames it; without that nothing is left of it.
class NewFile {
public:
  /// Throws io.
  explicit NewFile(const std::filesystem::path& target);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  /// Where it is until commit().
  const std::filesystem::path& path() const { return path_; }
  /// Several threads may write at different places.
  void write(std::string_view bytes, std::uint64_t offset) { file_.write_at(offset, bytes.data(), bytes.size()); }
  void commit();

private:
  std::filesystem::path target_;
  std::filesystem::path path_;
  File file_;
  bool committed_ = false;
};

/// Whether a file of this name is one that a NewFile was about to write.
bool is_temporary(const std::filesystem::path& path);

}  // namespace troupe::detail
