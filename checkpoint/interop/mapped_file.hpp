// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

namespace troupe::detail {

/// A whole file in memory that is read when it is touched. A program that cuts the file meanwhile ends the reader
/// (SIGBUS), as with every mapping.
class MappedFile {
public:
  /// Throws io.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const char* data() const { return data_; }
  std::size_t size() const { return size_; }

private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace troupe::detail
