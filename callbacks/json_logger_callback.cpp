// SPDX-License-Identifier: Apache-2.0
// The file always ends in "]". A report overwrites that end with ",\n<element>\n]" in one pwrite, so its cost does not
// grow with the file, and a program that is killed leaves the old or the new file, both valid.
#include <troupe/json_logger_callback.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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
void set_aside(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  const auto earlier = [&](int number) {
    return path.parent_path() / fmt::format("{}_{}{}", path.stem().string(), number, path.extension().string());
  };
  int number = 1;
  while (std::filesystem::exists(earlier(number), ignored)) ++number;
  std::filesystem::rename(path, earlier(number), ignored);
}

}  // namespace

class JsonLoggerCallback::File {
public:
  explicit File(std::filesystem::path path) : path_(std::move(path)) {
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    if (error) throw detail::io_error("JsonLoggerCallback cannot make the folder", path_.parent_path(), error.value());
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) throw detail::io_error("JsonLoggerCallback cannot open", path_, errno);
    const int failure = write_at(0, "[]");
    if (failure == 0) return;
    ::close(fd_);
    throw detail::io_error("JsonLoggerCallback cannot write", path_, failure);
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void append(std::string_view element) {
    const auto text = fmt::format("{}\n{}{}", end_ > 1 ? "," : "", element, closing);
    const int failure = write_at(end_, text);
    if (failure != 0) {
      restore_end();
      throw detail::io_error("JsonLoggerCallback cannot write", path_, failure);
    }
    end_ += static_cast<off_t>(text.size() - closing.size());
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

  /// After half an element (disk full): the room for the old end is still there.
  void restore_end() const {
    const auto old_end = end_ > 1 ? closing : closing.substr(1);
    const bool restored =
        write_at(end_, old_end) == 0 && ::ftruncate(fd_, end_ + static_cast<off_t>(old_end.size())) == 0;
    static_cast<void>(restored);  // the first error is the one that is thrown
  }

  std::filesystem::path path_;
  int fd_ = -1;
  off_t end_ = 1;  ///< where the closing bytes begin
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
  if (options_.logdir.empty()) set_aside(path_);
  file_ = std::make_unique<File>(path_);
}

void JsonLoggerCallback::handle_result(const std::vector<Json>& results, const ResultInfo& /*info*/) {
  if (!file_)
    throw Error(ErrorCode::invalid_state, "JsonLoggerCallback got a result outside a run: call start_training() first");
  file_->append(element_of(results, options_.workers_to_log));
}

void JsonLoggerCallback::finish_training(bool /*error*/) { file_.reset(); }

}  // namespace troupe
