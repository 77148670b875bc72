// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "runtime/base/system_error.hpp"

namespace troupe::detail {

File::File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File File::create(const std::filesystem::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0600);
  if (descriptor < 0) throw io_error("cannot make the file", path, errno);
  return {descriptor, path};
}

File File::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw io_error("cannot open the file", path, errno);
  return {descriptor, path};
}

std::uint64_t File::size() const {
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0) throw io_error("cannot look at the file", path_, errno);
  if (!S_ISREG(status.st_mode)) throw io_error("cannot read what is not a file:", path_, EINVAL);
  return static_cast<std::uint64_t>(status.st_size);
}

void File::reserve(std::uint64_t size) {
  int result = 0;
  do {
    result = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(size));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
    throw io_error("cannot get room for the file", path_, errno);
}

void File::write_at(std::uint64_t offset, const void* data, std::size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const auto written = ::pwrite(descriptor_, bytes, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw io_error("cannot write the file", path_, written < 0 ? errno : ENOSPC);
    bytes += written;
    size -= static_cast<std::size_t>(written);
    offset += static_cast<std::uint64_t>(written);
  }
}

void File::read_at(std::uint64_t offset, void* data, std::size_t size) const {
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    const auto read = ::pread(descriptor_, bytes, size, static_cast<off_t>(offset));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) throw io_error("cannot read the file", path_, errno);
    if (read == 0)
      throw Error(ErrorCode::io, fmt::format("the file {} ends at byte {}, {} bytes too early: it was cut",
                                             path_.string(), offset, size));
    bytes += read;
    size -= static_cast<std::size_t>(read);
    offset += static_cast<std::uint64_t>(read);
  }
}

void File::sync() {
  if (::fsync(descriptor_) != 0) throw io_error("cannot make the file durable:", path_, errno);
}

void File::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) throw io_error("cannot close the file", path_, errno);
}

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw io_error("cannot open the folder", folder, errno);
  File file(descriptor, folder);
  file.sync();
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw io_error("cannot rename to", to, errno);
  sync_folder(to.parent_path());
}

namespace {

/// 0, or the error; a folder that is there already is none.
int make_one_folder(const std::filesystem::path& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0) {
    const int failure = errno;
    std::error_code none;
    return failure == EEXIST && std::filesystem::is_directory(folder, none) ? 0 : failure;
  }
  sync_folder(folder.has_parent_path() ? folder.parent_path() : ".");
  return 0;
}

}  // namespace

void make_folder(const std::filesystem::path& folder) {
  int failure = make_one_folder(folder);
  if (failure == ENOENT && folder.has_parent_path() && folder.parent_path() != folder) {
    make_folder(folder.parent_path());
    failure = make_one_folder(folder);  // once: some file systems say ENOENT whatever is there
  }
  if (failure != 0) throw io_error("cannot make the folder", folder, failure);
}

std::string read_whole(const std::filesystem::path& path, std::size_t most) {
  const auto file = File::open(path);
  const auto size = file.size();
  if (size > most)
    throw Error(ErrorCode::io, fmt::format("the file {} has {} bytes, more than the {} that it may have: it is not "
                                           "what its name says",
                                           path.string(), size, most));
  std::string content(size, '\0');
  file.read_at(0, content.data(), content.size());
  return content;
}

}  // namespace troupe::detail
