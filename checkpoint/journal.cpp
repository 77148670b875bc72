// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/journal.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "checkpoint/crc32c.hpp"

namespace troupe::detail {
namespace {

constexpr std::size_t longest_journal = std::size_t{1} << 30;
constexpr std::size_t prefix_size = 9;  // checksum and space

std::string prefix(std::string_view text) { return fmt::format("{:08x} ", crc32c(text.data(), text.size())); }

/// Nothing, unless the line is whole and says what its checksum says.
Json parse_line(std::string_view line) {
  if (line.size() <= prefix_size || line.substr(0, prefix_size) != prefix(line.substr(prefix_size)))
    return Json::value_t::discarded;
  return Json::parse(line.substr(prefix_size), nullptr, false);
}

File open_locked(const std::filesystem::path& path) {
  File file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666), path);
  if (file.descriptor() < 0) throw io_error("cannot open the journal", path, errno);
  if (::flock(file.descriptor(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK) throw io_error("cannot lock the journal", path, errno);
  throw Error(ErrorCode::invalid_state,
              fmt::format("the run in {} is active: another program, or another Trainer of this one, drives it. Wait "
                          "for its end, or end it, before you go on with the run",
                          path.parent_path().string()));
}

}  // namespace

std::string journal_line(const Json& record) {
  const auto text = record.dump(-1, ' ', false, Json::error_handler_t::replace);
  return prefix(text) + text + "\n";
}

JournalContent read_journal(std::string_view text) {
  JournalContent content;
  bool bad = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto newline = text.find('\n', at);
    if (newline == std::string_view::npos) break;
    auto record = parse_line(text.substr(at, newline - at));
    at = newline + 1;
    if (!record.is_object()) {
      bad = true;
      continue;
    }
    content.damaged = bad;
    content.records.push_back(std::move(record));
    content.size = at;
  }
  return content;
}

Journal::Journal(const std::filesystem::path& path) : file_(open_locked(path)) {
  auto content = read_journal(read_whole(path, longest_journal));
  end_ = content.size;
  damaged_ = content.damaged;
  records_ = std::move(content.records);
  if (file_.size() == end_) return;
  damaged_ = true;
  if (::ftruncate(file_.descriptor(), static_cast<off_t>(end_)) != 0)
    throw io_error("cannot cut the torn end of the journal", file_.path(), errno);
}

void Journal::append(const Json& record, bool durable) {
  if (const auto why = why_lost(); !why.empty()) throw Error(ErrorCode::invalid_state, why);
  const auto line = journal_line(record);
  try {
    file_.write_at(end_, line.data(), line.size());
  } catch (...) {
    // Of a full disk, a half record: it would look like another program's.
    if (::ftruncate(file_.descriptor(), static_cast<off_t>(end_)) != 0) end_ = file_.size();
    throw;
  }
  end_ += line.size();
  if (durable) file_.sync();
}

std::string Journal::why_lost() const {
  struct stat mine = {};
  struct stat there = {};
  if (::fstat(file_.descriptor(), &mine) != 0 || ::stat(file_.path().c_str(), &there) != 0) return {};
  if (mine.st_ino == there.st_ino && mine.st_dev == there.st_dev && static_cast<std::uint64_t>(there.st_size) == end_)
    return {};
  return fmt::format("another program has taken over the run in {}: nothing more is written there by this one",
                     file_.path().parent_path().string());
}

}  // namespace troupe::detail
