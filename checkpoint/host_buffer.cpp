// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/host_buffer.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <troupe/error.hpp>

namespace troupe::detail {
namespace {

constexpr std::uint64_t huge_page = std::uint64_t{2} << 20;

}  // namespace

HostBuffer::~HostBuffer() {
  if (memory_ != nullptr) ::munmap(memory_, capacity_);
}

void HostBuffer::reserve(std::uint64_t size) {
  if (size <= capacity_) return;
  *this = HostBuffer();  // first, so that both are never there at once
  const auto wanted = (size + huge_page - 1) / huge_page * huge_page;
  void* memory = ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(ErrorCode::too_large,
                fmt::format("there is no memory for a copy of a checkpoint of {} bytes: save less, save it sharded, or "
                            "use fewer workers on this machine",
                            size));
  ::madvise(memory, wanted, MADV_HUGEPAGE);
  memory_ = static_cast<std::byte*>(memory);
  capacity_ = wanted;
}

}  // namespace troupe::detail
