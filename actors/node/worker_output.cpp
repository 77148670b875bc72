// SPDX-License-Identifier: Apache-2.0
#include "actors/node/worker_output.hpp"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace troupe::node {

namespace {

constexpr std::size_t piece = std::size_t{64} << 10;  // the usual size of a pipe

std::size_t bytes_waiting(int fd) {
  int count = 0;
  return ::ioctl(fd, FIONREAD, &count) == 0 && count > 0 ? static_cast<std::size_t>(count) : 0;
}

}  // namespace

WorkerOutput::WorkerOutput(UniqueFd out, UniqueFd err)
    : sources_{Source{std::move(out), stdout, {}}, Source{std::move(err), stderr, {}}} {}

void WorkerOutput::set_origin(int rank, pid_t pid) { prefix_ = fmt::format("(rank {}, pid {}) ", rank, pid); }

void WorkerOutput::set_log_file(const std::filesystem::path& path) {
  file_ = path.empty() ? nullptr : std::make_shared<LogFile>(path);
}

void WorkerOutput::close(Stream stream, LogPrinter& printer) {
  end_partial_line(source(stream), printer);
  source(stream).fd.reset();
}

WorkerOutput::ReadResult WorkerOutput::read_some(Stream stream, LogPrinter& printer) {
  auto& from = source(stream);
  std::array<char, piece> buffer;
  const auto size = ::read(from.fd.get(), buffer.data(), buffer.size());
  if (size <= 0) {
    return {.open = size < 0 && (errno == EAGAIN || errno == EINTR)};
  }
  const auto count = static_cast<std::size_t>(size);
  auto batch = new_batch(from);
  from.splitter.feed({buffer.data(), count}, [&](std::string_view line) { add_line(batch, line); });
  return {.size = count, .printer_full = !batch.printed.empty() && !printer.print(std::move(batch))};
}

void WorkerOutput::read_pending(LogPrinter& printer) {
  for (const auto stream : streams) {
    const int descriptor = fd(stream);
    if (descriptor < 0) {
      continue;
    }
    // Counted by what was there at first: a grandchild that keeps on writing cannot hold us. The printer may become
    // fuller than full here, by no more than a pipe holds.
    for (auto left = bytes_waiting(descriptor); left > 0;) {
      const auto size = read_some(stream, printer).size;
      if (size == 0) {
        break;
      }
      left -= std::min(left, size);
    }
  }
}

void WorkerOutput::end_partial_lines(LogPrinter& printer) {
  for (auto& from : sources_) {
    end_partial_line(from, printer);
  }
}

LogBatch WorkerOutput::new_batch(const Source& from) const { return {from.to, {}, {}, file_}; }

void WorkerOutput::add_line(LogBatch& batch, std::string_view line) {
  batch.printed.append(prefix_).append(line) += '\n';
  if (batch.file) {
    batch.plain.append(line) += '\n';
  }
  last_lines_.emplace_back(line.substr(0, max_last_line));
  if (last_lines_.size() > max_last_lines) {
    last_lines_.pop_front();
  }
}

void WorkerOutput::end_partial_line(Source& from, LogPrinter& printer) {
  auto batch = new_batch(from);
  from.splitter.finish([&](std::string_view line) { add_line(batch, line); });
  if (!batch.printed.empty()) {
    printer.print(std::move(batch));
  }
}

}  // namespace troupe::node
