// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/log_directory.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>

#include <troupe/error.hpp>

#include "runtime/base/system_error.hpp"

namespace troupe::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view run_prefix = "run_";

fs::path home_of_user() {
  std::array<char, 16384> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(::getuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr &&
      found->pw_dir != nullptr && *found->pw_dir != '\0')
    return found->pw_dir;
  throw Error(ErrorCode::io, fmt::format("no folder for results: HOME is not set and user {} has no home folder; set "
                                         "HOME, or give TrainerOptions::logdir an absolute path",
                                         ::getuid()));
}

fs::path home_folder() {
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? fs::path(home) : home_of_user();
}

/// True if made, false if the name is taken.
bool make_new_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return true;
  if (errno == EEXIST) return false;
  throw io_error("cannot make the folder", path, errno);
}

/// Makes the folder and those above it; fine if it is there and can be written to.
void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error && !fs::is_directory(path, error)) error = std::make_error_code(std::errc::not_a_directory);
  if (error) throw io_error("cannot make the folder", path, error.value());
  if (::access(path.c_str(), W_OK | X_OK) != 0) throw io_error("cannot write to the folder", path, errno);
}

fs::path make_dated_folder(const fs::path& parent) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  const auto name = fmt::format("train_{:%Y-%m-%d_%H-%M-%S}", local);
  auto path = parent / name;
  for (int suffix = 2; !make_new_folder(path); ++suffix) path = parent / fmt::format("{}_{}", name, suffix);
  return path;
}

/// The option as an absolute path.
fs::path place_of(const fs::path& option) {
  auto path = option;
  if (!option.empty() && *option.begin() == "~") {
    path = home_folder();
    for (auto part = std::next(option.begin()); part != option.end(); ++part) path /= *part;
  } else if (!option.is_absolute()) {
    path = home_folder() / "troupe_results" / option;
  }
  return fs::absolute(path).lexically_normal();
}

/// The number of a run's folder; 0 for other names.
int run_number(const std::string& name) {
  if (!name.starts_with(run_prefix)) return 0;
  int number = 0;
  const char* first = name.data() + run_prefix.size();
  const char* last = name.data() + name.size();
  auto [end, error] = std::from_chars(first, last, number);
  constexpr int highest = 999'999'999;  // leaves room to count on
  return error == std::errc{} && end == last && number > 0 && number < highest ? number : 0;
}

std::string run_name(int number) { return fmt::format("{}{:03}", run_prefix, number); }

int highest_run(const fs::path& logdir) {
  int highest = 0;
  std::error_code error;
  for (fs::directory_iterator it(logdir, error), end; !error && it != end; it.increment(error))
    highest = std::max(highest, run_number(it->path().filename().string()));
  if (error) throw io_error("cannot list the folder", logdir, error.value());
  return highest;
}

}  // namespace

fs::path make_logdir(const fs::path& option) {
  if (option.empty()) return make_dated_logdir(option);
  auto place = place_of(option);
  make_folder(place);
  return place;
}

fs::path make_dated_logdir(const fs::path& parent) {
  const auto place = place_of(parent);
  make_folder(place);
  return make_dated_folder(place);
}

fs::path make_run_dir(const fs::path& logdir) {
  make_folder(logdir);  // somebody may have removed it meanwhile
  int number = highest_run(logdir) + 1;
  fs::path path;
  do {
    path = logdir / run_name(number++);
  } while (!make_new_folder(path));
  make_folder(path / "logs");
  return path;
}

fs::path latest_run_dir(const fs::path& logdir) {
  const int number = highest_run(logdir);
  return number == 0 ? fs::path() : logdir / run_name(number);
}

}  // namespace troupe::detail
