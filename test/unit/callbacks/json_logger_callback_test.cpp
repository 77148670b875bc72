// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <troupe/json_logger_callback.hpp>

#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

using troupe::Json;
using troupe::JsonLoggerCallback;
using troupe::test::contains;
using troupe::test::read_file;
using troupe::test::TempFolder;
using troupe::test::thrown_by;

namespace {

std::vector<Json> round_of(int epoch) {
  return {Json{{"epoch", epoch}, {"rank", 0}}, Json{{"epoch", epoch}, {"rank", 1}}};
}

/// Files of this process may not grow above a size, for the guard's life.
class FileSizeLimit {
public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

private:
  rlimit old_{};
  void (*old_handler_)(int) = SIG_DFL;
};

/// Logs elements of 20 kB in a process of its own, until it is killed or has a lot of them; one byte goes into the pipe
/// when it has begun.
pid_t start_logging(const std::filesystem::path& folder, int begun) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  JsonLoggerCallback callback;
  callback.start_training({.logdir = folder});
  const std::vector<Json> results = {Json{{"text", std::string(20'000, 'x')}}};
  for (int round = 0;; ++round) {
    while (round == 2000) ::pause();
    callback.handle_result(results, {});
    if (round == 2 && ::write(begun, "x", 1) != 1) ::_exit(1);
  }
}

}  // namespace

DOCTEST_TEST_CASE("the file is valid JSON after every report") {
  TempFolder folder;
  JsonLoggerCallback callback;
  DOCTEST_CHECK(callback.log_path().empty());
  callback.start_training({.logdir = folder.path()});
  DOCTEST_CHECK(callback.log_path() == folder.path() / "results.json");
  DOCTEST_CHECK(read_file(callback.log_path()) == "[]");
  for (int epoch = 0; epoch < 20; ++epoch) {
    callback.handle_result(round_of(epoch), {});
    const auto log = Json::parse(read_file(callback.log_path()));
    DOCTEST_REQUIRE(log.size() == static_cast<std::size_t>(epoch) + 1);
    DOCTEST_CHECK(log.back().dump() == "[{\"epoch\":" + std::to_string(epoch) + ",\"rank\":0}]");
  }
  callback.finish_training(false);
  DOCTEST_CHECK(Json::parse(read_file(callback.log_path())).size() == 20);
  DOCTEST_CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

DOCTEST_TEST_CASE("the file is valid JSON whenever the program is killed") {
  const auto seed = std::random_device()();
  DOCTEST_CAPTURE(seed);
  std::mt19937 random(seed);
  for (int kill = 0; kill < 200; ++kill) {
    TempFolder folder;
    int pipe[2];
    DOCTEST_REQUIRE(::pipe(pipe) == 0);
    const pid_t pid = start_logging(folder.path(), pipe[1]);
    char byte = 0;
    DOCTEST_REQUIRE(::read(pipe[0], &byte, 1) == 1);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));  // any moment of a report
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    ::close(pipe[0]);
    ::close(pipe[1]);
    const auto log = Json::parse(read_file(folder.path() / "results.json"), nullptr, false);
    DOCTEST_REQUIRE(!log.is_discarded());
    DOCTEST_REQUIRE(log.size() >= 3);
  }
}

DOCTEST_TEST_CASE("the form of the file is one line a round") {
  TempFolder folder;
  JsonLoggerCallback callback;
  callback.start_training({.logdir = folder.path()});
  for (int epoch = 0; epoch < 2; ++epoch) callback.handle_result(round_of(epoch), {});
  DOCTEST_CHECK(read_file(callback.log_path()) == "[\n[{\"epoch\":0,\"rank\":0}],\n[{\"epoch\":1,\"rank\":0}]\n]");
}

DOCTEST_TEST_CASE("the ranks asked for are logged, and those that are not there are left out") {
  TempFolder folder;
  const auto logged = [&](troupe::JsonLoggerOptions options) {
    options.logdir = folder.path();
    JsonLoggerCallback callback(std::move(options));
    callback.start_training({});
    callback.handle_result(round_of(0), {});
    const auto log = Json::parse(read_file(callback.log_path()));
    std::string text;
    for (const auto& metrics : log[0]) text += metrics["rank"].dump() + " ";
    return text;
  };
  DOCTEST_CHECK(logged({}) == "0 ");
  DOCTEST_CHECK(logged({.workers_to_log = 1}) == "1 ");
  DOCTEST_CHECK(logged({.workers_to_log = {1}}) == "1 ");
  DOCTEST_CHECK(logged({.workers_to_log = {0, 1}}) == "0 1 ");
  DOCTEST_CHECK(logged({.workers_to_log = {{1, 0, 7}}}) == "1 0 ");
  DOCTEST_CHECK(logged({.workers_to_log = {2, 1'000'000}}).empty());
  DOCTEST_CHECK(logged({.workers_to_log = std::nullopt}) == "0 1 ");
  DOCTEST_CHECK(logged({.workers_to_log = std::vector<int>{}}).empty());
  DOCTEST_CHECK(logged({.workers_to_log = std::optional<std::vector<int>>()}) == "0 1 ");
}

DOCTEST_TEST_CASE("NaN, infinity and broken UTF-8 do not break the file") {
  TempFolder folder;
  JsonLoggerCallback callback;
  callback.start_training({.logdir = folder.path()});
  callback.handle_result({Json{{"loss", std::nan("")}, {"best", INFINITY}, {"text", "a\xff"}}}, {});
  DOCTEST_CHECK(Json::parse(read_file(callback.log_path())).dump() ==
                "[[{\"loss\":null,\"best\":null,\"text\":\"a\xEF\xBF\xBD\"}]]");
}

DOCTEST_TEST_CASE("a second run with the same callback writes the second run's file and leaves the first") {
  TempFolder folder;
  JsonLoggerCallback callback;
  for (const auto* run : {"run_001", "run_002"}) {
    callback.start_training({.logdir = folder.path() / run});
    callback.handle_result(round_of(0), {});
    callback.finish_training(false);
    DOCTEST_CHECK(callback.log_path() == folder.path() / run / "results.json");
  }
  DOCTEST_CHECK(Json::parse(read_file(folder.path() / "run_001/results.json")).size() == 1);
  DOCTEST_CHECK(Json::parse(read_file(folder.path() / "run_002/results.json")).size() == 1);
}

DOCTEST_TEST_CASE("a longer file of an earlier run leaves no rest") {
  TempFolder folder;
  std::ofstream(folder.path() / "log.json") << std::string(10'000, 'x');
  JsonLoggerCallback callback({.logdir = folder.path(), .filename = "log.json"});
  callback.start_training({});
  DOCTEST_CHECK(read_file(folder.path() / "log.json") == "[]");
}

DOCTEST_TEST_CASE("a file behind a link keeps its place") {
  TempFolder folder;
  std::ofstream(folder.path() / "real.json") << "old";
  std::filesystem::create_symlink("real.json", folder.path() / "log.json");
  JsonLoggerCallback callback({.logdir = folder.path(), .filename = "log.json"});
  callback.start_training({});
  for (int epoch = 0; epoch < 3; ++epoch) callback.handle_result(round_of(epoch), {});
  DOCTEST_CHECK(std::filesystem::is_symlink(folder.path() / "log.json"));
  DOCTEST_CHECK(Json::parse(read_file(folder.path() / "real.json")).size() == 3);
}

DOCTEST_TEST_CASE("a run that goes on in its folder keeps the file of its earlier part") {
  TempFolder folder;
  for (int part = 0; part < 3; ++part) {
    JsonLoggerCallback callback;
    callback.start_training({.logdir = folder.path()});
    callback.handle_result(round_of(part), {});
    callback.finish_training(false);
  }
  const auto epoch_in = [&](const char* name) { return Json::parse(read_file(folder.path() / name))[0][0]["epoch"]; };
  DOCTEST_CHECK(epoch_in("results_1.json") == 0);
  DOCTEST_CHECK(epoch_in("results_2.json") == 1);
  DOCTEST_CHECK(epoch_in("results.json") == 2);
}

DOCTEST_TEST_CASE("a second callback for the same file is refused, and the file of the first is whole") {
  TempFolder folder;
  std::filesystem::create_directory_symlink(".", folder.path() / "link");
  JsonLoggerCallback first;
  JsonLoggerCallback second;
  first.start_training({.logdir = folder.path()});
  first.handle_result(round_of(0), {});
  for (const auto& same : {folder.path(), folder.path() / "link"})
    DOCTEST_CHECK(contains(thrown_by([&] { second.start_training({.logdir = same}); }),
                           "invalid_option: another JsonLoggerCallback writes "));
  first.handle_result(round_of(1), {});
  DOCTEST_CHECK(Json::parse(read_file(folder.path() / "results.json")).size() == 2);
  DOCTEST_CHECK(!std::filesystem::exists(folder.path() / "results_1.json"));
  JsonLoggerCallback other({.filename = "others.json"});
  other.start_training({.logdir = folder.path()});
  first.start_training({.logdir = folder.path()});  // its own file is not another's
  first.finish_training(false);
  second.start_training({.logdir = folder.path()});
  second.handle_result(round_of(2), {});
  DOCTEST_CHECK(Json::parse(read_file(folder.path() / "results.json"))[0][0]["epoch"] == 2);
}

DOCTEST_TEST_CASE("bad options of the JSON logger are refused") {
  DOCTEST_CHECK(contains(thrown_by([] { JsonLoggerCallback({.workers_to_log = {{0, -1}}}); }),
                         "invalid_option: JsonLoggerOptions::workers_to_log has the rank -1"));
  DOCTEST_CHECK(contains(thrown_by([] { JsonLoggerCallback({.filename = ""}); }), "invalid_option: "));
}

DOCTEST_TEST_CASE("a file that cannot be made is an error with its path") {
  TempFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  JsonLoggerCallback below_a_file({.logdir = folder.path() / "file"});
  DOCTEST_CHECK(contains(thrown_by([&] { below_a_file.start_training({}); }), "io: JsonLoggerCallback cannot make"));
  JsonLoggerCallback on_a_folder(
      {.logdir = folder.path().parent_path(), .filename = folder.path().filename().string()});
  const auto text = thrown_by([&] { on_a_folder.start_training({}); });
  DOCTEST_CHECK(contains(text, "io: JsonLoggerCallback cannot open " + folder.path().string()));
}

DOCTEST_TEST_CASE("a full disk is an error with the path") {
  JsonLoggerCallback callback({.logdir = "/dev", .filename = "full"});
  DOCTEST_CHECK(contains(thrown_by([&] { callback.start_training({}); }),
                         "io: JsonLoggerCallback cannot write /dev/full: No space left on device"));
}

DOCTEST_TEST_CASE("a disk that fills up in the middle of a report leaves the reports before it, and takes later ones") {
  TempFolder folder;
  JsonLoggerCallback callback;
  callback.start_training({.logdir = folder.path()});
  const auto failed = [&] {
    return thrown_by([&] { callback.handle_result({Json{{"x", std::string(500, 'x')}}}, {}); });
  };
  {
    FileSizeLimit limit(100);
    DOCTEST_CHECK(contains(failed(), "io: JsonLoggerCallback cannot write"));
    DOCTEST_CHECK(read_file(callback.log_path()) == "[]");
    callback.handle_result(round_of(0), {});
    DOCTEST_CHECK(contains(failed(), "io: "));
  }
  DOCTEST_CHECK(read_file(callback.log_path()) == "[\n[{\"epoch\":0,\"rank\":0}]\n]");
  callback.handle_result(round_of(1), {});
  DOCTEST_CHECK(Json::parse(read_file(callback.log_path())).size() == 2);
}

DOCTEST_TEST_CASE("a result outside a run is refused") {
  JsonLoggerCallback callback;
  DOCTEST_CHECK(contains(thrown_by([&] { callback.handle_result(round_of(0), {}); }), "invalid_state: "));
}

DOCTEST_TEST_CASE("a report costs as many bytes in a long file as in a short one") {
  TempFolder folder;
  JsonLoggerCallback callback;
  callback.start_training({.logdir = folder.path()});
  const auto written = [] {  // by this process, whatever became of it
    std::ifstream file("/proc/self/io");
    for (std::string name; file >> name;) {
      std::uint64_t amount = 0;
      file >> amount;
      if (name == "wchar:") return amount;
    }
    return std::uint64_t{0};
  };
  const auto log = [&](int rounds) {
    const auto before = written();
    for (int i = 0; i < rounds; ++i) callback.handle_result(round_of(1000), {});
    return written() - before;
  };
  const auto first = log(100);
  DOCTEST_REQUIRE(first > 0);
  log(5000);
  DOCTEST_CHECK(log(100) < 2 * first);
}
