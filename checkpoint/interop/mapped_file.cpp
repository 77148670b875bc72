// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/interop/mapped_file.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "checkpoint/file.hpp"
#include "runtime/base/system_error.hpp"

namespace troupe::detail {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto file = File::open(path);
  size_ = file.size();
  if (size_ == 0) return;  // cannot be mapped
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (memory == MAP_FAILED) throw io_error("cannot map the file", path, errno);
  data_ = static_cast<const char*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace troupe::detail
