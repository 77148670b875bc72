// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include <troupe/error.hpp>

#include "runtime/base/system_error.hpp"

namespace troupe::storage {
namespace {

constexpr std::string_view temporary_suffix = ".troupe-tmp";

std::filesystem::path temporary_name(const std::filesystem::path& target) {
  static std::atomic<unsigned> counter{0};
  return target.parent_path() /
         fmt::format(".{}.{}.{}{}", target.filename().string(), ::getpid(), ++counter, temporary_suffix);
}

int open_or_throw(const std::filesystem::path& path, int flags, const char* what) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (fd < 0) throw detail::io_error(what, path, errno);
  return fd;
}

}  // namespace

File File::open_to_read(const std::filesystem::path& path) {
  return {path, open_or_throw(path, O_RDONLY, "cannot read the file")};
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

std::uint64_t File::size() const {
  struct stat status{};
  if (::fstat(fd_, &status) != 0) throw detail::io_error("cannot read the file", path_, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void File::read(char* out, std::size_t size, std::uint64_t offset) const {
  while (size > 0) {
    const auto count = ::pread(fd_, out, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw detail::io_error("cannot read the file", path_, errno);
    if (count == 0)
      throw Error(ErrorCode::io, fmt::format("the file {} ends at byte {}, {} bytes too early: another program cut it",
                                             path_.string(), offset, size));
    out += count;
    offset += static_cast<std::uint64_t>(count);
    size -= static_cast<std::size_t>(count);
  }
}

void File::write(std::string_view bytes, std::uint64_t offset) const {
  while (!bytes.empty()) {
    const auto count = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw detail::io_error("cannot write the file", path_, errno);
    offset += static_cast<std::uint64_t>(count);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

NewFile::NewFile(const std::filesystem::path& target) : File(temporary_name(target), -1), target_(target) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) throw detail::io_error("cannot write the file", target, errno);
}

NewFile::~NewFile() {
  if (!committed_) ::unlink(path_.c_str());
}

void NewFile::commit() {
  const auto check = [this](int result) {
    if (result != 0) throw detail::io_error("cannot write the file", target_, errno);
  };
  check(::fsync(fd_));
  check(std::rename(path_.c_str(), target_.c_str()));
  committed_ = true;
  // The name must survive a power cut too.
  const auto folder = target_.has_parent_path() ? target_.parent_path() : std::filesystem::path(".");
  const int folder_fd = open_or_throw(folder, O_RDONLY | O_DIRECTORY, "cannot sync the folder");
  const int failure = ::fsync(folder_fd) == 0 ? 0 : errno;
  ::close(folder_fd);
  if (failure != 0) throw detail::io_error("cannot sync the folder", folder, failure);
}

bool is_temporary(const std::filesystem::path& path) {
  const auto name = path.filename().string();
  return name.starts_with('.') && name.ends_with(temporary_suffix);
}

}  // namespace troupe::storage
