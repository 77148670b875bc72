// SPDX-License-Identifier: Apache-2.0
// What the integration tests share: trainers with a log directory of their own, both placements, errors as values, and
// programs in a process of their own. What waits, waits for an event; `patience` only bounds a test that has failed.
#pragma once

#include <doctest/doctest.h>
#include <sys/types.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <troupe/troupe.hpp>

#include "test/unit/temp_folder.hpp"

namespace troupe::test {

/// Nothing takes this long; a test that waits for it has failed.
constexpr std::chrono::seconds patience{30};

/// A Trainer whose log directory vanishes with it.
class TestTrainer {
public:
  explicit TestTrainer(TrainerOptions options = {}) : trainer_(in_folder(std::move(options), folder_)) {}

  Trainer* operator->() { return &trainer_; }
  Trainer& operator*() { return trainer_; }
  const std::filesystem::path& folder() const { return folder_.path(); }

private:
  static TrainerOptions in_folder(TrainerOptions options, const TempFolder& folder) {
    if (options.logdir.empty()) options.logdir = folder.path() / "results";
    return options;
  }

  TempFolder folder_;
  Trainer trainer_;
};

/// Calls `test(placement)` for process and thread placement.
template <class Test>
void on_both_placements(Test&& test) {
  for (auto placement : {Placement::process, Placement::thread}) {
    const std::string name = placement == Placement::process ? "process" : "thread";
    DOCTEST_CAPTURE(name);
    test(placement);
  }
}

/// What a call threw.
struct Thrown {
  ErrorCode code;
  std::string text;
  std::optional<int> rank;
  bool training_failed = false;
  bool interrupted = false;

  bool says(const std::string& part) const { return text.find(part) != std::string::npos; }
};

/// The troupe::Error that `body` throws; the test ends if it throws nothing. Other exceptions pass.
template <class Body>
Thrown error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.code(), error.what(), error.rank(), dynamic_cast<const TrainingFailed*>(&error) != nullptr,
            dynamic_cast<const Interrupted*>(&error) != nullptr};
  }
  DOCTEST_FAIL("nothing was thrown");
  return {ErrorCode::internal, "", std::nullopt};
}

/// A callback made of functions.
struct FunctionCallback : TrainingCallback {
  std::function<void(const TrainingInfo&)> on_start = [](const TrainingInfo&) {};
  std::function<void(const std::vector<Json>&, const ResultInfo&)> on_result = [](const auto&, const auto&) {};
  std::function<void(bool)> on_finish = [](bool) {};

  void start_training(const TrainingInfo& info) override { on_start(info); }
  void handle_result(const std::vector<Json>& results, const ResultInfo& info) override { on_result(results, info); }
  void finish_training(bool error) override { on_finish(error); }
};

/// A callback that keeps everything.
struct Recorder : TrainingCallback {
  void start_training(const TrainingInfo& given) override {
    started += 1;
    info = given;
  }
  void handle_result(const std::vector<Json>& results, const ResultInfo& given) override {
    rounds.push_back(results);
    infos.push_back(given);
  }
  void finish_training(bool error) override { finishes.push_back(error); }

  int started = 0;
  TrainingInfo info;
  std::vector<std::vector<Json>> rounds;
  std::vector<ResultInfo> infos;
  std::vector<bool> finishes;
};

/// True for the first caller of all processes that use this folder and name.
bool is_first(const std::filesystem::path& folder, const std::string& name);

/// A named pipe, for one word between processes. Opening blocks until the other side is there, so both sides meet.
class Fifo {
public:
  explicit Fifo(std::filesystem::path path);
  const std::filesystem::path& path() const { return path_; }
  /// Waits for a writer and reads what it writes until it closes.
  std::string read() const;

private:
  std::filesystem::path path_;
};
/// Waits for a reader and writes.
void write_fifo(const std::filesystem::path& path, const std::string& text);
/// Waits until somebody has opened the pipe for writing and closed it again.
void wait_for_fifo(const std::filesystem::path& path);

/// This program as another host, in a process of its own: `--host=name argument`. Its stdout is in our hands.
class Program {
public:
  Program(const std::string& host, const std::string& argument = "", std::vector<std::string> environment = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Without the newline; what is there at the end of the output.
  std::string read_line();
  std::string read_all();
  /// The wait status.
  int wait();
  /// "exit 0", "signal 9".
  std::string wait_text();

private:
  pid_t pid_ = -1;
  int output_ = -1;
};

/// Says a line to the test that runs us as a Program.
void say(const std::string& line);

/// Holds a process by descriptor, so that its number can mean no other.
class ProcessWatch {
public:
  explicit ProcessWatch(pid_t pid);
  ~ProcessWatch();
  ProcessWatch(ProcessWatch&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  /// Waits for its end; true if it ended in time. A zombie counts as ended.
  bool ends_within(std::chrono::milliseconds limit) const;

private:
  int fd_ = -1;
};

/// The process and all that descend from it.
std::vector<pid_t> process_tree(pid_t root);
/// Those of them that are zombies.
int zombies_of(pid_t parent);
std::size_t open_descriptors(pid_t pid);
std::size_t thread_count(pid_t pid);
/// Resident memory in MB.
double resident_mb(pid_t pid);
/// Where a process waits for connections: "127.0.0.1:4711", "tcp6 ...", and "unix" for named and abstract sockets.
std::vector<std::string> listening_addresses(pid_t pid);

/// Keeps what the program writes to a descriptor while the scope lives. No assertions there: their text would be kept
/// too.
class CapturedOutput {
public:
  explicit CapturedOutput(int fd);
  ~CapturedOutput();
  std::string text() const;

private:
  TempFolder folder_;
  int fd_;
  int saved_ = -1;
};

/// What was written to stdout during `body`.
template <class Body>
std::string output_of(Body&& body) {
  CapturedOutput out(1);
  body();
  return out.text();
}

/// How long `body` took.
template <class Body>
std::chrono::milliseconds time_of(Body&& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
}

}  // namespace troupe::test
