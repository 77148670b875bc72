// SPDX-License-Identifier: Apache-2.0
// What worker processes print: prefix, log files, completeness.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <sstream>

#include <fmt/format.h>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool has_line(const std::string& text, const std::string& line) {
  for (const auto& one : lines_of(text))
    if (one == line) return true;
  return false;
}

/// Takes what the program writes to a descriptor while the scope lives, as it comes.
class PipedOutput {
public:
  explicit PipedOutput(int fd) : fd_(fd), saved_(::fcntl(fd, F_DUPFD_CLOEXEC, 3)) {
    int ends[2];
    if (saved_ < 0 || ::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    ::dup2(ends[1], fd);
    ::close(ends[1]);
    reader_ = ends[0];
  }
  ~PipedOutput() {
    ::dup2(saved_, fd_);
    ::close(saved_);
    ::close(reader_);
  }
  PipedOutput(const PipedOutput&) = delete;
  PipedOutput& operator=(const PipedOutput&) = delete;

  /// Waits until `part` has come; false if it does not.
  bool shows(const std::string& part) {
    pollfd ready{reader_, POLLIN, 0};
    while (text_.find(part) == std::string::npos) {
      char buffer[4096];
      if (::poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(patience).count())) != 1) return false;
      const auto count = ::read(reader_, buffer, sizeof buffer);
      if (count <= 0) return false;
      text_.append(buffer, static_cast<std::size_t>(count));
    }
    return true;
  }

private:
  int fd_;
  int saved_;
  int reader_ = -1;
  std::string text_;
};

}  // namespace

DOCTEST_TEST_CASE("output of workers comes with rank and pid to the same stream of the driver") {
  TestTrainer trainer({.num_workers = 2});
  trainer->start();
  std::string errors;
  const auto output = output_of([&] {
    CapturedOutput err(STDERR_FILENO);
    trainer->run([] {
      std::cout << "hello" << std::endl;
      std::fprintf(stderr, "a warning\n");
    });
    errors = err.text();
  });
  const auto pids = trainer->worker_pids();
  for (std::size_t rank : {0, 1}) {
    DOCTEST_CHECK(has_line(output, fmt::format("(rank {}, pid {}) hello", rank, pids[rank])));
    DOCTEST_CHECK(has_line(errors, fmt::format("(rank {}, pid {}) a warning", rank, pids[rank])));
  }
}

DOCTEST_TEST_CASE("log files lie in the log directory before a run and in the run's folder afterwards") {
  TestTrainer trainer({.num_workers = 2});
  output_of([&] {
    trainer->start([] { std::puts("in the hook"); });
    constexpr auto speak = [](const Config& config) { std::cout << config["text"].get<std::string>() << "\n"; };
    trainer->run(speak, {.config = {{"text", "first run"}}});
    trainer->run(speak, {.config = {{"text", "second run"}}});
    trainer->shutdown();
  });
  const auto logdir = trainer->logdir();
  DOCTEST_CHECK(read_file(logdir / "logs/rank_1.log") == "in the hook\n");
  DOCTEST_CHECK(read_file(logdir / "run_001/logs/rank_0.log") == "first run\n");
  DOCTEST_CHECK(read_file(logdir / "run_001/logs/rank_1.log") == "first run\n");
  DOCTEST_CHECK(read_file(logdir / "run_002/logs/rank_1.log") == "second run\n");
}

DOCTEST_TEST_CASE("a line is printed and in the log file as soon as it ends, while the worker runs on") {
  TestTrainer trainer({.num_workers = 1});
  trainer->start();
  const Fifo go(trainer.folder() / "go");
  bool shows_first = false;
  bool shows_second = false;
  std::string log;
  {
    PipedOutput output(STDOUT_FILENO);
    auto rounds = trainer->run_iterator(
        [](const Config& config) {
          std::printf("one line\nand a half");  // no flush
          wait_for_fifo(config["go"].get<std::string>());
          std::cout << " line\n";
          train::wait_for_stop();
        },
        {.config = {{"go", go.path().string()}}});
    shows_first = output.shows(") one line\n");
    write_fifo(go.path(), "go");
    shows_second = output.shows(") and a half line\n");
    log = read_file(trainer->latest_run_dir() / "logs/rank_0.log");  // a line is printed, then written
  }
  DOCTEST_CHECK(shows_first);
  DOCTEST_CHECK(shows_second);
  DOCTEST_CHECK(log.starts_with("one line\n"));
}

DOCTEST_TEST_CASE("output is complete when run returns") {
  TestTrainer trainer({.num_workers = 2});
  trainer->start();
  for (int attempt = 0; attempt < 10; ++attempt) {
    const auto text = output_of([&] {
      trainer->run([] {
        for (int line = 0; line < 500; ++line) std::cout << "line " << line << "\n";  // no flush, no final newline
        std::cout << "the end";
      });
    });
    DOCTEST_CHECK(lines_of(text).size() == 2 * 501);
    for (auto pid : trainer->worker_pids())
      DOCTEST_CHECK(text.find(fmt::format("pid {}) the end", pid)) != std::string::npos);
    DOCTEST_CHECK(lines_of(read_file(trainer->latest_run_dir() / "logs/rank_1.log")).size() == 501);
  }
}

DOCTEST_TEST_CASE("output before an exception and before a death is complete as well") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 0});
  trainer->start();
  for (const bool dies : {false, true}) {
    DOCTEST_CAPTURE(dies);
    std::optional<Thrown> error;
    const auto text = output_of([&] {
      error = error_of([&] {
        trainer->run(
            [](const Config& config) {
              if (train::world_rank() != 1) return;
              std::cout << "last words" << std::endl;
              if (config["dies"].get<bool>()) ::_exit(3);
              throw std::runtime_error("no");
            },
            {.config = {{"dies", dies}}});
      });
    });
    DOCTEST_CHECK(text.find(") last words\n") != std::string::npos);
    DOCTEST_CHECK(error->says("last words"));
    DOCTEST_CHECK(read_file(trainer->latest_run_dir() / "logs/rank_1.log") == "last words\n");
  }
}

DOCTEST_TEST_CASE("a megabyte without a newline is cut into lines of 64 KiB and loses nothing") {
  TestTrainer trainer({.num_workers = 2});
  const auto text =
      output_of([&] { trainer->run([] { std::cout << std::string(1 << 20, train::world_rank() == 0 ? 'a' : 'b'); }); });
  std::size_t letters = 0;
  for (const auto& line : lines_of(text)) {
    const auto prefix = line.find(") ") + 2;
    DOCTEST_CHECK(line.size() - prefix <= 64 * 1024);
    DOCTEST_CHECK(line.find_first_not_of(line.back(), prefix) == std::string::npos);  // ranks do not mix
    letters += line.size() - prefix;
  }
  DOCTEST_CHECK(letters == 2 << 20);
  DOCTEST_CHECK(read_file(trainer->latest_run_dir() / "logs/rank_1.log").size() == (1 << 20) + 16);
}

}  // namespace troupe::test
