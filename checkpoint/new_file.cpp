// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/new_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>

#include "runtime/base/system_error.hpp"

namespace troupe::detail {
namespace {

constexpr std::string_view temporary_suffix = ".troupe-tmp";

std::filesystem::path temporary_name(const std::filesystem::path& target) {
  static std::atomic<unsigned> counter{0};
  return target.parent_path() /
         fmt::format(".{}.{}.{}{}", target.filename().string(), ::getpid(), ++counter, temporary_suffix);
}

/// Unlike File::create(), for all whom the user's umask lets read.
File create(const std::filesystem::path& path, const std::filesystem::path& target) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) throw io_error("cannot write the file", target, errno);
  return {descriptor, path};
}

}  // namespace

NewFile::NewFile(const std::filesystem::path& target)
    : target_(std::filesystem::absolute(target)), path_(temporary_name(target_)), file_(create(path_, target_)) {}

NewFile::~NewFile() {
  if (!committed_) ::unlink(path_.c_str());
}

void NewFile::commit() {
  file_.sync();
  file_.close();
  auto written = File::open(path_);  // another file, if a library wrote it and put it there
  written.sync();
  rename_durably(path_, target_);
  committed_ = true;
}

bool is_temporary(const std::filesystem::path& path) {
  const auto name = path.filename().string();
  return name.starts_with('.') && name.ends_with(temporary_suffix);
}

}  // namespace troupe::detail
