// SPDX-License-Identifier: Apache-2.0
// Files whose every error is seen. All calls are plain libc functions, so that tests can make any of them fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/base/system_error.hpp"

namespace troupe::detail {

/// An open file. Every failure throws io with the path; what was written is lost then and must be written anew under
/// another name: after a failed fsync nobody knows what is on the disk.
class File {
public:
  File() = default;
  /// Takes a descriptor over; `path` is for messages.
  File(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  /// A new file that only its owner may read; one that exists is an error.
  static File create(const std::filesystem::path& path, int flags = 0);
  static File open(const std::filesystem::path& path);

  int descriptor() const { return descriptor_; }
  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const;
  /// Gets room on the disk for so many bytes where the file system can; they are zero. Throws io when there is none.
  void reserve(std::uint64_t size);
  void write_at(std::uint64_t offset, const void* data, std::size_t size);
  /// Throws io also when the file ends before.
  void read_at(std::uint64_t offset, void* data, std::size_t size) const;
  void sync();
  /// Throws io; a destructor could not tell.
  void close();

private:
  int descriptor_ = -1;
  std::filesystem::path path_;
};

/// Makes names in a folder durable.
void sync_folder(const std::filesystem::path& folder);
/// Renames, then makes the new name durable.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
/// Makes the folder, if need be with its parents, and their names durable.
void make_folder(const std::filesystem::path& folder);
/// The whole file; throws io also when it is longer than `most` bytes.
std::string read_whole(const std::filesystem::path& path, std::size_t most);

/// Runs `function`; what std::filesystem throws becomes our io.
template <class F>
auto as_io_errors(F&& function) {
  try {
    return function();
  } catch (const std::filesystem::filesystem_error& error) {
    throw io_error("cannot read or change", error.path1(), error.code().value());
  }
}

}  // namespace troupe::detail
