// SPDX-License-Identifier: Apache-2.0
// Files as storage reads and writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace troupe::storage {

/// An open file, closed with its scope. All functions throw io with the path.
class File {
public:
  static File open_to_read(const std::filesystem::path& path);
  File(File&& other) noexcept : path_(std::move(other.path_)), fd_(other.fd_) { other.fd_ = -1; }
  File& operator=(File&&) = delete;
  ~File();

  std::uint64_t size() const;
  /// Fills all of `size` bytes; a file that ends before is an error.
  void read(char* out, std::size_t size, std::uint64_t offset) const;
  void write(std::string_view bytes, std::uint64_t offset) const;
  const std::filesystem::path& path() const { return path_; }

protected:
  File(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::filesystem::path path_;
  int fd_;
};

/// A file written beside its place. commit() syncs and renames it; without that nothing is left of it.
class NewFile : public File {
public:
  explicit NewFile(const std::filesystem::path& target);
  ~NewFile();
  void commit();

private:
  std::filesystem::path target_;
  bool committed_ = false;
};

/// Whether a file of this name is one that a NewFile was about to write.
bool is_temporary(const std::filesystem::path& path);

}  // namespace troupe::storage
