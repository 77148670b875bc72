// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/write_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>

#include <troupe/error.hpp>

#include "runtime/base/system_error.hpp"

namespace troupe::detail {
namespace {

bool write_all(int fd, std::string_view rest) {
  while (!rest.empty()) {
    const auto written = ::write(fd, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// Unique among threads and processes, hidden from people who list the folder.
std::filesystem::path temporary_name(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  return path.parent_path() / fmt::format(".{}.{}.{}.tmp", path.filename().string(), ::getpid(), ++counter);
}

}  // namespace

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  const auto temporary = temporary_name(path);
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) throw io_error("cannot write the file", path, errno);
  int failure = write_all(fd, content) && ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (failure == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) failure = errno;
  if (failure == 0) return;
  ::unlink(temporary.c_str());
  throw io_error("cannot write the file", path, failure);
}

}  // namespace troupe::detail
