// SPDX-License-Identifier: Apache-2.0
// The file always ends in "]". A report overwrites that end with ",\n<element>\n]", so its cost does not grow with the
// file. A kill cuts a write at any page, so the write goes to a second copy, which then changes names with the first:
// who reads finds the old or the new file, both whole. The copy that stands by is one element behind.
#include <troupe/json_logger_callback.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <troupe/error.hpp>

#include "runtime/base/system_error.hpp"

namespace troupe {
namespace {

constexpr std::string_view closing = "\n]";

std::string element_of(const std::vector<Json>& results, const std::optional<std::vector<int>>& ranks) {
  std::string text = "[";
  auto add = [&](const Json& metrics) {
    if (text.size() > 1) text += ',';
    text += metrics.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  if (!ranks) {
    std::for_each(results.begin(), results.end(), add);
  } else {
    for (int rank : *ranks)
      if (static_cast<std::size_t>(rank) < results.size()) add(results[static_cast<std::size_t>(rank)]);
  }
  return text += ']';
}

/// A run that goes on in its folder finds the file of its earlier part there: it becomes results_1.json, and so on.
std::filesystem::path set_aside(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return path;
  const auto earlier = [&](int number) {
    return path.parent_path() / fmt::format("{}_{}{}", path.stem().string(), number, path.extension().string());
  };
  int number = 1;
  while (std::filesystem::exists(earlier(number), ignored)) ++number;
  std::filesystem::rename(path, earlier(number), ignored);
  return path;
}

/// A file has one writer: a second one would empty the copy that the first writes to.
class Claim {
public:
  explicit Claim(const std::filesystem::path& path) {
    std::error_code error;
    path_ = std::filesystem::weakly_canonical(path, error);
    if (error) path_ = path;
    std::lock_guard lock(mutex());
    if (!claimed().insert(path_).second)
      throw Error(ErrorCode::invalid_option,
                  fmt::format("another JsonLoggerCallback writes {}: give this one another JsonLoggerOptions::filename",
                              path.string()));
  }
  ~Claim() {
    std::lock_guard lock(mutex());
    claimed().erase(path_);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

private:
  // Never destroyed: callbacks may have static storage.
  static std::mutex& mutex() {
    static auto* const instance = new std::mutex;
    return *instance;
  }
  static std::set<std::filesystem::path>& claimed() {
    static auto* const instance = new std::set<std::filesystem::path>;
    return *instance;
  }

  std::filesystem::path path_;
};

/// One of the two files.
class Copy {
public:
  explicit Copy(const std::filesystem::path& path)
      : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (fd_ < 0) throw detail::io_error("JsonLoggerCallback cannot open", path, errno);
    const int failure = write_at(0, "[]");
    if (failure == 0) return;
    ::close(fd_);
    throw detail::io_error("JsonLoggerCallback cannot write", path, failure);
  }
  ~Copy() {
    if (fd_ >= 0) ::close(fd_);
  }
  Copy(Copy&& other) noexcept : fd_(std::exchange(other.fd_, -1)), end_(other.end_) {}
  Copy& operator=(Copy&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(end_, other.end_);
    return *this;
  }

  bool is_empty() const { return end_ == 1; }

  /// Writes behind the last element; counts once it is kept. 0 or the error number.
  int write(const std::string& text) const { return write_at(end_, text + std::string(closing)); }
  void keep(std::size_t size) { end_ += static_cast<off_t>(size); }
  /// After half an element (disk full): the room for the old end is still there.
  void restore_end() const {
    const auto old_end = is_empty() ? closing.substr(1) : closing;
    const bool restored =
        write_at(end_, old_end) == 0 && ::ftruncate(fd_, end_ + static_cast<off_t>(old_end.size())) == 0;
    static_cast<void>(restored);  // the first error is the one that is thrown
  }

private:
  /// 0 or the error number.
  int write_at(off_t offset, std::string_view text) const {
    while (!text.empty()) {
      const auto written = ::pwrite(fd_, text.data(), text.size(), offset);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return errno;
      offset += written;
      text.remove_prefix(static_cast<std::size_t>(written));
    }
    return 0;
  }

  int fd_;
  off_t end_ = 1;  ///< where the closing bytes begin
};

std::filesystem::path make_parent(std::filesystem::path path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) throw detail::io_error("JsonLoggerCallback cannot make the folder", path.parent_path(), error.value());
  return path;
}

}  // namespace

class JsonLoggerCallback::File {
public:
  File(std::filesystem::path path, bool keep_earlier)
      : path_(make_parent(std::move(path))),
        claim_(path_),
        next_path_(path_.parent_path() / fmt::format(".{}.next", path_.filename().string())),
        copy_(keep_earlier ? set_aside(path_) : path_) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path_, ignored))) return;  // keeps its name
    next_.emplace(next_path_);
    if (exchange() == 0) return;
    next_.reset();  // this file system cannot
    ::unlink(next_path_.c_str());
  }
  ~File() {
    if (next_) ::unlink(next_path_.c_str());
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void append(std::string_view element) {
    const auto text = fmt::format("{}\n{}", copy_.is_empty() ? "" : ",", element);
    const auto missing = next_ ? last_ + text : text;
    auto& copy = next_ ? *next_ : copy_;
    int failure = copy.write(missing);
    if (failure == 0 && next_) failure = exchange();
    if (failure != 0) {
      copy.restore_end();
      throw detail::io_error("JsonLoggerCallback cannot write", path_, failure);
    }
    copy_.keep(missing.size());
    last_ = text;
  }

private:
  /// 0 or the error number.
  int exchange() {
    if (::renameat2(AT_FDCWD, next_path_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) return errno;
    std::swap(copy_, *next_);
    return 0;
  }

  std::filesystem::path path_;
  Claim claim_;
  std::filesystem::path next_path_;
  Copy copy_;                 ///< that is seen
  std::optional<Copy> next_;  ///< that is written to
  std::string last_;          ///< what it lacks
};

JsonLoggerCallback::JsonLoggerCallback(JsonLoggerOptions options) : options_(std::move(options)) {
  if (options_.filename.empty())
    throw Error(ErrorCode::invalid_option, "JsonLoggerOptions::filename is empty; valid: a name such as results.json");
  if (!options_.workers_to_log) return;
  for (int rank : *options_.workers_to_log)
    if (rank < 0)
      throw Error(ErrorCode::invalid_option,
                  fmt::format("JsonLoggerOptions::workers_to_log has the rank {}; valid: ranks from 0 on, or "
                              "std::nullopt for all",
                              rank));
}

JsonLoggerCallback::~JsonLoggerCallback() = default;

void JsonLoggerCallback::start_training(const TrainingInfo& info) {
  const auto& folder = options_.logdir.empty() ? info.logdir : options_.logdir;
  path_ = std::filesystem::absolute(folder / options_.filename);
  file_.reset();
  file_ = std::make_unique<File>(path_, options_.logdir.empty());
}

void JsonLoggerCallback::handle_result(const std::vector<Json>& results, const ResultInfo& /*info*/) {
  if (!file_)
    throw Error(ErrorCode::invalid_state, "JsonLoggerCallback got a result outside a run: call start_training() first");
  file_->append(element_of(results, options_.workers_to_log));
}

void JsonLoggerCallback::finish_training(bool /*error*/) { file_.reset(); }

}  // namespace troupe
