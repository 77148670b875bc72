// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shard_reader.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "checkpoint/crc32c.hpp"
#include "runtime/base/system_error.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace troupe::detail {
namespace {

/// Up to this size the mapping does for everything.
constexpr std::uint64_t small_shard = std::uint64_t{16} << 20;

class ShardTensor : public TensorBytes {
public:
  ShardTensor(std::shared_ptr<const ShardReader> reader, std::uint64_t offset, std::uint64_t size)
      : reader_(std::move(reader)), offset_(offset), size_(size) {}
  const std::byte* data() const override { return reader_->data(offset_, size_); }
  void copy_to(std::byte* destination, std::size_t size) const override { reader_->copy(offset_, size, destination); }

private:
  std::shared_ptr<const ShardReader> reader_;
  std::uint64_t offset_;
  std::uint64_t size_;
};

}  // namespace

std::shared_ptr<const ShardReader> ShardReader::open(File file, const std::optional<ShardInfo>& expected,
                                                     bool may_close) {
  return std::shared_ptr<const ShardReader>(new ShardReader(std::move(file), expected, may_close));
}

ShardReader::ShardReader(File file, const std::optional<ShardInfo>& expected, bool may_close) : file_(std::move(file)) {
  const auto size = file_.size();
  const auto& path = file_.path();
  if (expected && size != expected->size)
    throw damaged(path, fmt::format("it has {} bytes, the manifest says {}", size, expected->size));
  if (size < page_size) throw damaged(path, fmt::format("it has only {} bytes", size));
  Page page;
  file_.read_at(0, page.data(), page.size());
  header_ = read_header(page, size, path);
  if (expected && (crc_of_header(page) != expected->crc || header_.rank != static_cast<std::uint64_t>(expected->rank)))
    throw damaged(path, "it is not the file that the manifest means");

  std::string tail(header_.tail_size, '\0');  // no more than the file has
  file_.read_at(header_.tail_offset(), tail.data(), tail.size());
  if (crc32c(tail.data(), tail.size()) != header_.tail_crc)
    throw damaged(
        path, fmt::format("its index (bytes {} to {}) does not match its checksum", header_.tail_offset(), size - 1));
  crcs_.resize(blocks_of(header_.data_size));
  if (!crcs_.empty())  // memcpy() may not be given a null pointer, not even with no bytes
    std::memcpy(crcs_.data(), tail.data() + header_.index_size, crcs_.size() * sizeof(std::uint32_t));
  try {
    std::string_view index(tail.data(), header_.index_size);
    records_ = read_records(index);
    if (!index.empty()) throw Error(ErrorCode::io, "bytes are left over");
  } catch (const Error& error) {
    throw damaged(path, fmt::format("its index does not make sense ({})", error.what()));
  }
  map();
  // What is mapped stays, also when the file is removed.
  if (may_close && size <= small_shard) file_ = File(-1, file_.path());
}

ShardReader::~ShardReader() {
  if (mapped_ != nullptr) ::munmap(const_cast<std::byte*>(mapped_), header_.data_size);
}

void ShardReader::map() {
  if (header_.data_size == 0) return;
  void* memory =
      ::mmap(nullptr, header_.data_size, PROT_READ, MAP_SHARED, file_.descriptor(), static_cast<off_t>(data_offset));
  if (memory == MAP_FAILED) throw io_error("cannot map the file", file_.path(), errno);
  mapped_ = static_cast<const std::byte*>(memory);
  checked_ = std::make_unique<std::atomic<std::uint8_t>[]>(crcs_.size());
}

Checkpoint ShardReader::checkpoint() const {
  try {
    return unflatten(records_, header_.tensors_size, [&](const Record& record) {
      return TensorData(record.dtype, record.shape,
                        std::make_shared<const ShardTensor>(shared_from_this(), record.offset, record.length));
    });
  } catch (const Error& error) {
    throw damaged(file_.path(), fmt::format("its index does not make sense ({})", error.what()));
  }
}

void ShardReader::verify() const {
  for (std::uint64_t block = 0; block < crcs_.size(); ++block) check_block(block);
}

const std::byte* ShardReader::data(std::uint64_t offset, std::uint64_t size) const {
  if (size == 0) return nullptr;
  for (auto block = offset / block_size; block * block_size < offset + size; ++block) check_block(block);
  return mapped_ + offset;
}

void ShardReader::copy(std::uint64_t offset, std::uint64_t size, std::byte* destination) const {
  while (size > 0) {
    const auto block = offset / block_size;
    const auto inside = offset % block_size;
    const auto part = std::min(size, block_size - inside);
    if (inside == 0 && part == size_of_block(block)) {
      read_block(block, destination);
      compare(block, destination);  // while it is in the processor's cache, and on the very bytes
    } else {
      check_block(block);
      std::memcpy(destination, mapped_ + offset, part);
    }
    destination += part;
    offset += part;
    size -= part;
  }
}

/// Reading is cheaper than copying from the mapping.
void ShardReader::read_block(std::uint64_t block, std::byte* destination) const {
  const auto offset = block * block_size;
  if (file_.descriptor() >= 0) return file_.read_at(data_offset + offset, destination, size_of_block(block));
  bring_in(block);
  std::memcpy(destination, mapped_ + offset, size_of_block(block));
}

std::uint64_t ShardReader::size_of_block(std::uint64_t block) const {
  return std::min(block_size, header_.data_size - block * block_size);
}

void ShardReader::check_block(std::uint64_t block) const {
  if (checked_[block].load(std::memory_order_relaxed) != 0) return;
  bring_in(block);
  compare(block, mapped_ + block * block_size);
  checked_[block].store(1, std::memory_order_relaxed);
}

/// Reads a block into memory; a bare access would end the program if the disk or the file failed us there.
void ShardReader::bring_in(std::uint64_t block) const {
  const auto* first = mapped_ + block * block_size;
  if (::madvise(const_cast<std::byte*>(first), size_of_block(block), MADV_POPULATE_READ) == 0) return;
  if (errno == EINVAL) return;  // a kernel before 5.14
  if (errno == EFAULT || errno == EHWPOISON)
    throw damaged(file_.path(), fmt::format("bytes {} and on cannot be read", data_offset + block * block_size));
  throw io_error("cannot read the file", file_.path(), errno);
}

void ShardReader::compare(std::uint64_t block, const std::byte* bytes) const {
  const auto size = size_of_block(block);
  if (crc32c(bytes, size) == crcs_[block]) return;
  const auto first = data_offset + block * block_size;
  throw damaged(file_.path(), fmt::format("bytes {} to {} do not match their checksum", first, first + size - 1));
}

}  // namespace troupe::detail
