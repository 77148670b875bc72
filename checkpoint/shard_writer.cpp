// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shard_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "checkpoint/crc32c.hpp"
#include "checkpoint/host_buffer.hpp"
#include "checkpoint/large_copy.hpp"
#include "checkpoint/records.hpp"
#include "checkpoint/shard_format.hpp"

namespace troupe::detail {
namespace {

/// Bytes of one write call: large enough for the disk, small enough that the first one soon begins.
constexpr std::uint64_t chunk_size = 4 * block_size;
/// From here on a file is written past the page cache, into room that was reserved before, and by several threads:
/// while most wait for the disk, which is fastest when it has several requests, another computes checksums.
constexpr std::uint64_t large = 8 * block_size;
constexpr unsigned threads_for_large = 6;

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{page_size}); }
};
using AlignedMemory = std::unique_ptr<std::byte[], FreeAligned>;

AlignedMemory allocate_aligned(std::uint64_t size) {
  return AlignedMemory(static_cast<std::byte*>(::operator new[](size, std::align_val_t{page_size})));
}

/// The tensors of a checkpoint where they are.
class TensorsInPlace : public ShardData {
public:
  explicit TensorsInPlace(const Flat& flat) : flat_(flat) {
    for (const auto& record : flat.records)
      if (record.kind == CheckpointItem::Kind::tensor) offsets_.push_back(record.offset);
  }

  const std::byte* read(std::uint64_t offset, std::size_t size, std::byte* scratch, std::uint32_t& crc) const override {
    crc = 0;
    auto place =
        static_cast<std::size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), offset) - offsets_.begin());
    if (place > 0) --place;
    const auto end = offset + size;
    auto reached = offset;
    const auto fill_up_to = [&](std::uint64_t to) {
      std::memset(scratch + (reached - offset), 0, to - reached);
      crc = crc32c(scratch + (reached - offset), to - reached, crc);
      reached = to;
    };
    for (; place < offsets_.size() && offsets_[place] < end; ++place) {
      const auto& tensor = flat_.tensors[place];
      const auto first = std::max(offset, offsets_[place]);
      const auto last = std::min(end, offsets_[place] + tensor.bytes());
      if (first >= last) continue;
      fill_up_to(first);
      crc = copy(tensor.data() + (first - offsets_[place]), last - first, scratch + (first - offset), crc);
      reached = last;
    }
    fill_up_to(end);
    return scratch;
  }

private:
  /// Gives the checksum that goes on from `crc`. In parts that stay in the processor's cache: memory is read once.
  static std::uint32_t copy(const std::byte* from, std::uint64_t size, std::byte* to, std::uint32_t crc) {
    constexpr std::uint64_t part = std::uint64_t{128} << 10;
    for (std::uint64_t done = 0; done < size; done += part) {
      const auto length = std::min(part, size - done);
      crc = crc32c(from + done, length, crc);
      copy_large(to + done, from + done, length);
    }
    return crc;
  }

  const Flat& flat_;
  std::vector<std::uint64_t> offsets_;
};

/// Writes the chunks of the tensors' area; several threads may run it on one object.
class DataWriter {
public:
  DataWriter(File& file, const ShardData& data, std::uint64_t size)
      : file_(file), data_(data), size_(size), crcs_(blocks_of(size)) {}

  void run(unsigned threads) {
    std::vector<std::jthread> helpers;
    for (unsigned count = 1; count < threads; ++count) helpers.emplace_back([this] { work(); });
    work();
    helpers.clear();
    if (failure_) std::rethrow_exception(failure_);
  }
  const std::vector<std::uint32_t>& crcs() const { return crcs_; }

private:
  void work() {
    try {
      // Huge pages: the disk takes a few large pieces of memory much faster than a thousand of 4 KiB.
      HostBuffer huge;
      AlignedMemory small;
      if (size_ >= large)
        huge.reserve(chunk_size);
      else
        small = allocate_aligned(size_);
      auto* scratch = size_ >= large ? huge.data() : small.get();
      for (;;) {
        const auto offset = next_.fetch_add(chunk_size);
        if (offset >= size_) return;
        write_chunk(offset, std::min(chunk_size, size_ - offset), scratch);
      }
    } catch (...) {
      next_ = size_;  // the others stop too
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  void write_chunk(std::uint64_t offset, std::uint64_t size, std::byte* scratch) {
    const std::byte* bytes =
        nullptr;  // of the chunk: its blocks lie behind one another, there or in the scratch memory
    for (std::uint64_t place = 0; place < size; place += block_size) {
      const auto part = std::min(block_size, size - place);
      const auto* block = data_.read(offset + place, part, scratch + place, crcs_[(offset + place) / block_size]);
      if (place == 0) bytes = block;
    }
    file_.write_at(data_offset + offset, bytes, size);
  }

  File& file_;
  const ShardData& data_;
  const std::uint64_t size_;
  std::vector<std::uint32_t> crcs_;
  std::atomic<std::uint64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

File create_file(const std::filesystem::path& path, std::uint64_t size) {
  if (size < large) return File::create(path);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0600);
  if (descriptor >= 0) return {descriptor, path};
  if (errno == EINVAL) ::unlink(path.c_str());  // file systems that refuse O_DIRECT may have made the file
  return File::create(path);                    // reports what is wrong, or works
}

}  // namespace

std::string shard_name(int rank, std::uint64_t generation) {
  return fmt::format("shard_{:05}_{:016x}.bin", rank, generation);
}

ShardInfo write_shard(File& file, const std::string& index, std::uint64_t tensors_size, const ShardData& data,
                      const ShardOptions& options) {
  ShardHeader header;
  header.generation = options.generation;
  header.rank = static_cast<std::uint64_t>(options.rank);
  header.tensors_size = tensors_size;
  header.data_size = round_to_page(tensors_size);
  header.index_size = index.size();

  DataWriter writer(file, data, header.data_size);
  writer.run(header.data_size >= large && !options.background ? threads_for_large : 1);

  const auto table_size = writer.crcs().size() * sizeof(std::uint32_t);
  header.tail_size = round_to_page(index.size() + table_size);
  // Header and tail in one aligned piece of memory, as writing past the page cache demands.
  const auto memory = allocate_aligned(page_size + header.tail_size);
  auto* tail = memory.get() + page_size;
  std::memset(tail, 0, header.tail_size);
  std::memcpy(tail, index.data(), index.size());
  if (table_size > 0) std::memcpy(tail + index.size(), writer.crcs().data(), table_size);
  header.tail_crc = crc32c(tail, header.tail_size);
  file.write_at(header.tail_offset(), tail, header.tail_size);
  const auto page = write_header(header);
  std::memcpy(memory.get(), page.data(), page.size());
  file.write_at(0, memory.get(), page_size);
  if (options.sync) file.sync();
  return {file.path().filename().string(), options.rank, header.file_size(), crc_of_header(page)};
}

ShardInfo write_shard(const std::filesystem::path& path, const std::string& index, std::uint64_t tensors_size,
                      const ShardData& data, const ShardOptions& options) {
  auto file = create_file(path, tensors_size);
  try {
    // Writes that make a file longer wait for each other; and a full disk is better told at once.
    if (tensors_size >= large) file.reserve(data_offset + round_to_page(tensors_size));
    auto info = write_shard(file, index, tensors_size, data, options);
    file.close();
    return info;
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

ShardInfo write_shard(File& file, const Checkpoint& checkpoint, const ShardOptions& options) {
  const auto flat = flatten(checkpoint);
  return write_shard(file, write_records(flat.records), flat.size, TensorsInPlace(flat), options);
}

ShardInfo write_shard(const std::filesystem::path& path, const Checkpoint& checkpoint, const ShardOptions& options) {
  const auto flat = flatten(checkpoint);
  return write_shard(path, write_records(flat.records), flat.size, TensorsInPlace(flat), options);
}

}  // namespace troupe::detail
