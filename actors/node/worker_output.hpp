// SPDX-License-Identifier: Apache-2.0
// The output of one worker on its way from the two pipes to the printer, and its last lines.
#pragma once

#include <array>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/node/descriptors.hpp"
#include "actors/node/log_pipe.hpp"
#include "actors/node/log_printer.hpp"

namespace troupe::node {

class WorkerOutput {
public:
  enum class Stream : std::size_t { out = 0, err = 1 };
  static constexpr std::array streams = {Stream::out, Stream::err};
  static constexpr std::size_t max_last_lines = 20;
  static constexpr std::size_t max_last_line = 4096;  ///< longer ones are cut where they are kept, not where printed

  /// The read ends of the pipes.
  WorkerOutput(UniqueFd out, UniqueFd err);

  /// The prefix is known from the fork on.
  void set_origin(int rank, pid_t pid);
  void set_log_file(const std::filesystem::path& path);
  /// -1 once it was closed.
  int fd(Stream stream) const { return source(stream).fd.get(); }
  void close(Stream stream, LogPrinter& printer);

  struct ReadResult {
    std::size_t size = 0;
    bool open = true;  ///< false: end of the stream
    bool printer_full = false;
  };
  /// Takes a piece of what is there.
  ReadResult read_some(Stream stream, LogPrinter& printer);
  /// Takes all that was written before this call, however fast somebody goes on writing.
  void read_pending(LogPrinter& printer);
  /// Ends lines that have no newline yet.
  void end_partial_lines(LogPrinter& printer);

  std::vector<std::string> last_lines() const { return {last_lines_.begin(), last_lines_.end()}; }
  void forget_last_lines() { last_lines_.clear(); }

private:
  struct Source {
    UniqueFd fd;
    std::FILE* to = nullptr;
    LineSplitter splitter;
  };
  Source& source(Stream stream) { return sources_[static_cast<std::size_t>(stream)]; }
  const Source& source(Stream stream) const { return sources_[static_cast<std::size_t>(stream)]; }
  LogBatch new_batch(const Source& from) const;
  void add_line(LogBatch& batch, std::string_view line);
  void end_partial_line(Source& from, LogPrinter& printer);

  std::array<Source, 2> sources_;
  std::string prefix_;
  std::shared_ptr<LogFile> file_;
  std::deque<std::string> last_lines_;
};

}  // namespace troupe::node
