// SPDX-License-Identifier: Apache-2.0
#include "actors/node/log_printer.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "actors/node/threads.hpp"
#include "runtime/base/log.hpp"

namespace troupe::node {

namespace {

/// Not through the stream: while this waits for a reader, others need its lock, exit() among them.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd entry{fd, POLLOUT, 0};
      ::poll(&entry, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

void LogFile::append(std::string_view text) {
  if (!open()) {
    return;
  }
  while (!text.empty()) {
    const auto written = ::write(file_.get(), text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      return give_up(std::strerror(errno));
    }
  }
}

bool LogFile::open() {
  if (failed_ || file_ || path_.empty()) {
    return static_cast<bool>(file_);
  }
  std::error_code ignored;  // opening tells better what is wrong
  std::filesystem::create_directories(path_.parent_path(), ignored);
  file_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file_) {
    give_up(std::strerror(errno));
  }
  return static_cast<bool>(file_);
}

void LogFile::give_up(const std::string& reason) {
  failed_ = true;
  file_.reset();
  // Not fmt::print: it throws where stderr cannot be written either, and nobody catches on the printer's thread.
  log_warning(
      "cannot write the log file {}: {}. Lines are still printed; check the folder, its rights and the free space.",
      path_.string(), reason);
}

LogPrinter::LogPrinter(std::function<void()> on_room)
    : on_room_(std::move(on_room)), thread_(start_thread("troupe-log", [this] { run(); })) {}

LogPrinter::~LogPrinter() {
  {
    std::lock_guard lock(mutex_);
    quitting_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool LogPrinter::print(LogBatch batch) {
  std::lock_guard lock(mutex_);
  queue_.push_back({std::move(batch), {}});
  waiting_ += queue_.back().size();
  changed_.notify_all();
  room_wanted_ = room_wanted_ || waiting_ > max_waiting;
  return !room_wanted_;
}

bool LogPrinter::full() {
  std::lock_guard lock(mutex_);
  return room_wanted_;
}

void LogPrinter::call(std::function<void()> done) {
  std::lock_guard lock(mutex_);
  queue_.push_back({{}, std::move(done)});
  changed_.notify_all();
}

void LogPrinter::flush(std::chrono::milliseconds timeout) {
  if (std::this_thread::get_id() == thread_.get_id()) {
    return;
  }
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return queue_.empty() && !busy_; });
}

void LogPrinter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return quitting_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    auto item = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    work(item);
    const auto size = item.size();
    item = {};  // what a callback holds may be freed here, not under the lock
    lock.lock();
    busy_ = false;
    waiting_ -= size;
    const bool tell_room = room_wanted_ && waiting_ <= max_waiting / 2;
    if (tell_room) {
      room_wanted_ = false;
    }
    changed_.notify_all();
    if (tell_room) {
      lock.unlock();
      on_room_();
      lock.lock();
    }
  }
}

void LogPrinter::work(Item& item) {
  const auto& batch = item.batch;
  if (batch.to != nullptr) {
    std::fflush(batch.to);  // what the program itself has printed comes before
    write_all(::fileno(batch.to), batch.printed);
  }
  if (batch.file) {
    batch.file->append(batch.plain);
  }
  if (item.done) {
    item.done();
  }
}

}  // namespace troupe::node
