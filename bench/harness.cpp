// SPDX-License-Identifier: Apache-2.0
#include "bench/harness.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <stdexcept>

#include <fmt/format.h>
#include <troupe/backend.hpp>
#include <troupe/json.hpp>

namespace troupe::bench {
namespace {

/// A folder that goes with the program. Workers never run destructors of globals, so they cannot remove it.
class ScratchFolder {
public:
  ScratchFolder() {
    auto name = (std::filesystem::temp_directory_path() / "troupe_bench.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make the folder " + name);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
};

std::string read_all(int from) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto count = ::read(from, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

/// Runs this program with `arguments`; gives what it prints.
std::string output_of_copy(std::vector<std::string> arguments) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  arguments.insert(arguments.begin(), "troupe_bench");
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  const auto text = error == 0 ? read_all(ends[0]) : std::string();
  ::close(ends[0]);
  int status = 0;
  if (error != 0 || ::waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error(fmt::format("a copy of this program failed (spawn {}, status {})", error, status));
  return text;
}

}  // namespace

void Output::add(const Figure& figure) const {
  if (json_) {
    std::cout << Json{{"name", figure.name}, {"value", figure.value}, {"unit", figure.unit}, {"n", figure.n}};
  } else {
    const auto* sign = figure.better == Figure::Better::lower ? "<=" : ">=";
    std::cout << fmt::format("{:<20} {:>12.{}f} {:<9} n={:<7} floor {} {:<8} {}", figure.name, figure.value,
                             figure.value < 100 ? 2 : 0, figure.unit, figure.n, sign,
                             fmt::format("{:.6g}", figure.floor), figure.reached() ? "" : "MISSED");
  }
  std::cout << '\n' << std::flush;
}

double percentile(std::vector<double> samples, double share) {
  if (samples.empty()) throw std::logic_error("a percentile of nothing");
  std::sort(samples.begin(), samples.end());
  const double at = share * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(at));
  const auto above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (samples[above] - samples[below]) * (at - std::floor(at));
}

std::int64_t now_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::filesystem::path scratch_folder() {
  static const ScratchFolder folder;
  return folder.path();
}

TrainerOptions trainer_options(int workers) {
  TrainerOptions options;
  const auto backends = backend_names();
  if (std::find(backends.begin(), backends.end(), "torch") != backends.end()) options.backend = "torch";
  options.num_workers = workers;
  options.logdir = scratch_folder();
  options.max_retries = 0;
  return options;
}

double run_probe(const std::string& name, int workers) {
  const auto since = std::to_string(now_ns());
  return std::stod(output_of_copy({"--probe", name, "--workers", std::to_string(workers), "--since", since}));
}

}  // namespace troupe::bench
