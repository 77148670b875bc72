// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/writer.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "checkpoint/background_priority.hpp"
#include "checkpoint/crc32c.hpp"
#include "checkpoint/shard_format.hpp"
#include "runtime/base/make_thread.hpp"
#include "runtime/base/system_error.hpp"

namespace troupe::detail {
namespace {

/// A copy of the tensors, laid out as in the file.
class CopiedData : public ShardData {
public:
  explicit CopiedData(const std::byte* data) : data_(data) {}
  const std::byte* read(std::uint64_t offset, std::size_t size, std::byte*, std::uint32_t& crc) const override {
    crc = crc32c(data_ + offset, size);
    return data_ + offset;
  }

private:
  const std::byte* data_;
};

/// Copies tensors to their places; what lies between them becomes zero.
void copy_tensors(const Flat& flat, std::byte* destination) {
  std::uint64_t reached = 0;
  std::size_t place = 0;
  for (const auto& record : flat.records) {
    if (record.kind != CheckpointItem::Kind::tensor) continue;
    std::memset(destination + reached, 0, record.offset - reached);
    flat.tensors[place++].copy_to(destination + record.offset);
    reached = record.offset + record.length;
  }
  std::memset(destination + reached, 0, round_to_page(flat.size) - reached);
}

std::shared_ptr<File> make_memory_file() {
  const int descriptor = ::memfd_create("troupe_checkpoint", MFD_CLOEXEC);
  if (descriptor < 0) throw io_error("cannot make a file in memory", "troupe_checkpoint", errno);
  return std::make_shared<File>(descriptor, "(in memory)");
}

}  // namespace

/// Waits for the writer, which is not in the background meanwhile. Raised again now and then: it may just have been
/// about to lower itself, which it cannot do under the lock (at low priority it might keep that for long).
template <class Condition>
void CheckpointWriter::wait(std::unique_lock<std::mutex>& lock, Condition&& condition) {
  ++waiting_;
  while (!condition()) {
    if (thread_id_ != 0) set_background_priority(false, thread_id_);
    changed_.wait_for(lock, std::chrono::milliseconds(50), condition);
  }
  --waiting_;
}

CheckpointWriter::CheckpointWriter() : thread_(make_thread("that writes checkpoints", [this] { run(); })) {}

CheckpointWriter::~CheckpointWriter() {
  {
    std::unique_lock lock(mutex_);
    wait(lock, [this] { return !queued_ && !is_writing_; });
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointWriter::save(const Checkpoint& checkpoint, std::filesystem::path path, ShardOptions options, Done done) {
  auto flat = flatten(checkpoint);
  Job job{std::move(flat.records), flat.size, take_buffer(), std::move(path), options, std::move(done)};
  const auto before = job.buffer.capacity();
  const auto give_back = [&] {
    const std::lock_guard lock(mutex_);
    held_ += job.buffer.capacity() - before;
    spare_.push_back(std::move(job.buffer));
  };
  try {
    job.buffer.reserve(std::max(round_to_page(flat.size), page_size));
    flat.records.swap(job.records);  // copy_tensors() reads both
    copy_tensors(flat, job.buffer.data());
    flat.records.swap(job.records);
  } catch (...) {
    give_back();
    throw;
  }
  {
    const std::lock_guard lock(mutex_);
    held_ += job.buffer.capacity() - before;
    queued_ = std::move(job);
  }
  changed_.notify_all();
}

/// Waits until there is room for one more.
HostBuffer CheckpointWriter::take_buffer() {
  std::unique_lock lock(mutex_);
  wait(lock, [this] { return !queued_; });
  if (spare_.empty()) return {};
  auto buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

void CheckpointWriter::flush() {
  std::unique_lock lock(mutex_);
  wait(lock, [this] { return !queued_ && !is_writing_; });
}

std::uint64_t CheckpointWriter::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

void CheckpointWriter::run() {
  std::unique_lock lock(mutex_);
  thread_id_ = static_cast<int>(::syscall(SYS_gettid));
  for (;;) {
    changed_.wait(lock, [this] { return queued_ || is_stopping_; });
    if (!queued_) return;
    auto job = *std::move(queued_);
    queued_.reset();
    is_writing_ = true;
    const bool may_take_its_time = waiting_ == 0;
    lock.unlock();
    if (may_take_its_time) set_background_priority(true);
    changed_.notify_all();
    auto result = write(job);
    set_background_priority(false);
    if (job.done) job.done(std::move(result));
    lock.lock();
    spare_.push_back(std::move(job.buffer));
    is_writing_ = false;
    changed_.notify_all();
  }
}

WrittenShard CheckpointWriter::write(const Job& job) {
  WrittenShard result;
  auto options = job.options;
  options.background = true;
  try {
    const auto index = write_records(job.records);
    const CopiedData data(job.buffer.data());
    if (job.path.empty()) {
      options.sync = false;
      result.memory = make_memory_file();
      result.info = write_shard(*result.memory, index, job.size, data, options);
    } else {
      result.info = write_shard(job.path, index, job.size, data, options);
    }
  } catch (const Error& error) {
    result.error = error;
  } catch (const std::exception& error) {
    result.error = Error(ErrorCode::internal, std::string("the checkpoint's writer failed: ") + error.what());
  }
  if (result.error) result.memory.reset();
  return result;
}

}  // namespace troupe::detail
