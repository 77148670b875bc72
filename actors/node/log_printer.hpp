// SPDX-License-Identifier: Apache-2.0
// Prints the workers' lines and appends them to their log files, on a thread of its own: a blocked terminal or a slow
// disk must not delay anybody else. Its queue is bounded by those who feed it: they stop when it is full.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "actors/node/descriptors.hpp"

namespace troupe::node {

/// A file that lines are appended to. Opened at the first line, folders included; used on the printer's thread only.
class LogFile {
public:
  explicit LogFile(std::filesystem::path path) : path_(std::move(path)) {}
  /// A failure is told once on stderr, and the file is given up.
  void append(std::string_view text);

private:
  bool open();
  void give_up(const std::string& reason);

  std::filesystem::path path_;
  UniqueFd file_;
  bool failed_ = false;
};

/// Whole lines of one worker.
struct LogBatch {
  std::FILE* to = nullptr;
  std::string printed;  ///< with prefixes
  std::string plain;    ///< for the file
  std::shared_ptr<LogFile> file;
};

class LogPrinter {
public:
  static constexpr std::size_t max_waiting = std::size_t{4} << 20;

  /// `on_room` is called on the printer's thread when a full queue has emptied to its half.
  explicit LogPrinter(std::function<void()> on_room);
  LogPrinter(const LogPrinter&) = delete;
  LogPrinter& operator=(const LogPrinter&) = delete;
  ~LogPrinter();

  /// False: the queue is full now (the batch is in it all the same), and `on_room` will be called.
  bool print(LogBatch batch);
  /// `on_room` is still to come.
  bool full();
  /// Calls `done` on the printer's thread once everything before it is out.
  void call(std::function<void()> done);
  /// Waits until everything is out, at most for this long. At once on the printer's own thread.
  void flush(std::chrono::milliseconds timeout);

private:
  struct Item {
    LogBatch batch;
    std::function<void()> done;
    std::size_t size() const { return batch.printed.size() + batch.plain.size(); }
  };
  void run();
  void work(Item& item);

  std::function<void()> on_room_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  std::size_t waiting_ = 0;  ///< bytes in the queue, the one in work included
  bool busy_ = false;
  bool room_wanted_ = false;
  bool quitting_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace troupe::node
