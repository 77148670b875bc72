// SPDX-License-Identifier: Apache-2.0
// Saves that are disturbed at every call they make: an older valid checkpoint or an exact new one is loaded afterwards,
// always. A real process saves, a preloaded library disturbs it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file.hpp"
#include "checkpoint/keeper.hpp"
#include "checkpoint/scan.hpp"
#include "checkpoint/shard_writer.hpp"
#include "test/faults/state.hpp"
#include "test/support/skip.hpp"
#include "test/unit/checkpoint/newest.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

namespace fs = std::filesystem;
using namespace troupe::detail;
using namespace troupe::test;

extern char** environ;

namespace {

// Kilobytes; a large one is written by several threads into room that was reserved, past the page cache if it can be.
constexpr std::size_t small = 24;
constexpr std::size_t large = 20'000;

/// Runs the saver; `fault` is empty for an undisturbed run. Returns its exit code, or 1000 + signal.
int run_saver(std::vector<std::string> arguments, const std::vector<std::string>& fault) {
  arguments.insert(arguments.begin(), TROUPE_SAVER);
  std::vector<std::string> environment = fault;  // of two equal names the first counts
  if (!fault.empty()) {
    environment.emplace_back("LD_PRELOAD=" TROUPE_IO_FAULTS);
    environment.emplace_back("ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0");
  }
  for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (auto& text : texts) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
  };
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int failure =
      ::posix_spawn(&child, TROUPE_SAVER, &actions, nullptr, pointers(arguments).data(), pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) return 2000 + failure;
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

int save(const fs::path& parent, int id, int generation, std::size_t kilobytes,
         const std::vector<std::string>& fault = {}) {
  std::vector<std::string> arguments{parent, std::to_string(id), std::to_string(generation), std::to_string(kilobytes)};
  if (kilobytes == large) arguments.emplace_back("at-once");
  return run_saver(std::move(arguments), fault);
}

/// Call number `at` below `parent` fails in this way.
std::vector<std::string> fault_of(const std::string& kind, int at, const fs::path& parent, const fs::path& fired) {
  return {"IO_FAULTS_UNDER=" + parent.string(), "IO_FAULTS_AT=" + std::to_string(at), "IO_FAULTS_KIND=" + kind,
          "IO_FAULTS_FIRED=" + fired.string()};
}

/// 1 or 2: exactly that checkpoint is what a recovering run loads; 0 for anything else.
int loaded(const fs::path& parent, std::size_t kilobytes) {
  const auto latest = load_latest(parent);
  if (!latest) return 0;
  const auto id = latest->found.manifest.id;
  return latest->checkpoint.to_dict() == state(id, kilobytes * 1024) ? static_cast<int>(id) : 0;
}

std::size_t count_files(const fs::path& folder) {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) count += entry.is_regular_file();
  return count;
}

/// Saves checkpoint 2 over 1, disturbed at call n, for every n. Returns how many calls a save makes.
int disturb_every_call(const std::string& kind, std::size_t kilobytes) {
  // What is durable is for the library to say, so memory is good enough, and fast.
  const EnvironmentGuard folder("TMPDIR", fs::exists("/dev/shm") ? "/dev/shm" : nullptr);
  for (int at = 1; at < 200; ++at) {
    TempFolder temp;
    const auto parent = temp.path() / "checkpoints";
    const auto fired = temp.path() / "fired";
    DOCTEST_CAPTURE(kind);
    DOCTEST_CAPTURE(at);
    DOCTEST_REQUIRE(save(parent, 1, 1, kilobytes) == 0);
    const int code = save(parent, 2, 1, kilobytes, fault_of(kind, at, parent, fired));
    const int found = loaded(parent, kilobytes);
    DOCTEST_CHECK(found != 0);
    if (code == 0) DOCTEST_CHECK(found == 2);
    if (code != 0) DOCTEST_CHECK((code == 3 || code == 77));
    // The next attempt begins where this one ended, whatever it left.
    sweep(parent);
    DOCTEST_CHECK(loaded(parent, kilobytes) == found);
    DOCTEST_CHECK(save(parent, found + 1, 2, kilobytes) == 0);
    const auto again = load_latest(parent);
    DOCTEST_REQUIRE(again.has_value());
    DOCTEST_CHECK(again->found.manifest.id == static_cast<std::uint64_t>(found) + 1);
    DOCTEST_CHECK(again->skipped.empty());
    if (!fs::exists(fired)) return at - 1;
  }
  return 200;
}

/// The number of a checkpoint that is exactly as it was saved; 0 for anything else.
std::uint64_t number_of(const std::optional<troupe::Checkpoint>& checkpoint) {
  if (!checkpoint) return 0;
  for (std::uint64_t number = 1; number <= 3; ++number) {
    if (!checkpoint->has_files() && checkpoint->to_dict() == state(number, 1024)) return number;
    if (checkpoint->has_files() &&
        read_file(checkpoint->as_directory().path() / "model") == "number " + std::to_string(number))
      return number;
  }
  return 0;
}

/// A keeper saves three, disturbed at call n, for every n: the run goes on, and so does the one after it. Returns how
/// many calls there are.
int disturb_keeper(const std::string& kind, const std::string& what) {
  const EnvironmentGuard folder("TMPDIR", fs::exists("/dev/shm") ? "/dev/shm" : nullptr);
  for (int at = 1; at < 400; ++at) {
    TempFolder temp;
    const auto run = temp.path() / "run";
    const auto fired = temp.path() / "fired";
    const auto told = temp.path() / "told";
    fs::create_directory(run);
    DOCTEST_CAPTURE(kind);
    DOCTEST_CAPTURE(what);
    DOCTEST_CAPTURE(at);
    const int code = run_saver({"keeper", run, what, told}, fault_of(kind, at, run, fired));
    if (kind.starts_with("E"))
      DOCTEST_CHECK(code == 0);
    else
      DOCTEST_CHECK((code == 0 || code == 77));
    std::uint64_t newest = 0;
    std::ifstream lines(told);
    for (std::uint64_t number = 0; lines >> number;) newest = number;
    CheckpointKeeper keeper({.directory = run, .strategy = best_one(), .resume = true});
    keeper.begin_attempt(2);
    // What was said to be saved is there, and one that had just been committed may be.
    const auto found = number_of(keeper.latest());
    DOCTEST_CHECK((found == newest || (code == 77 && found == newest + 1)));
    DOCTEST_CHECK((found == 0 || number_of(keeper.best().at(0).first) != 0));
    DOCTEST_CHECK(keeper.errors().empty());
    if (!fs::exists(fired)) return at - 1;
  }
  return 400;
}

}  // namespace

DOCTEST_TEST_CASE("a call that fails anywhere in a save costs that checkpoint at most") {
  for (const auto* kind : {"EIO", "ENOSPC", "short"}) {
    const int calls = disturb_every_call(kind, small);
    DOCTEST_CHECK(calls > 20);
    DOCTEST_CHECK(calls < 200);
  }
}

DOCTEST_TEST_CASE("a program that ends anywhere in a save leaves a valid checkpoint") {
  for (const auto* kind : {"exit_before", "exit_after"}) DOCTEST_CHECK(disturb_every_call(kind, small) > 20);
}

DOCTEST_TEST_CASE("a power cut anywhere in a save leaves a valid checkpoint of durable bytes") {
  DOCTEST_CHECK(disturb_every_call("power_cut", small) > 20);
}

DOCTEST_TEST_CASE("a large save, by several threads at once, costs itself at most when a call fails") {
  for (const auto* kind : {"EIO", "short", "power_cut"}) DOCTEST_CHECK(disturb_every_call(kind, large) > 25);
}

DOCTEST_TEST_CASE("a call that fails anywhere in a keeper ends no run, and the newest checkpoint stays") {
  for (const auto* what : {"dictionary", "files"}) {
    const int calls = disturb_keeper("EIO", what);
    DOCTEST_CHECK(calls > 60);
    DOCTEST_CHECK(calls < 400);
  }
}

DOCTEST_TEST_CASE("a program that ends anywhere in a keeper goes on from the newest checkpoint") {
  DOCTEST_CHECK(disturb_keeper("exit_after", "dictionary") > 60);
}

DOCTEST_TEST_CASE("a power cut anywhere in a keeper leaves the newest checkpoint, moved or not") {
  DOCTEST_CHECK(disturb_keeper("power_cut", "files") > 60);
}

DOCTEST_TEST_CASE("a failing disk under a large save, which goes past the page cache, leaves the older checkpoint") {
  TempFolder temp;
  const auto parent = temp.path() / "checkpoints";
  DOCTEST_REQUIRE(save(parent, 1, 1, large) == 0);
  for (const int at : {6, 7, 8, 9}) {  // room, and the writes of tensors
    const auto fired = temp.path() / "fired";
    fs::remove(fired);
    const int code = save(parent, 2, at, large, fault_of("EIO", at, parent, fired));
    DOCTEST_CHECK(fs::exists(fired));
    DOCTEST_CHECK(code == 3);
    DOCTEST_CHECK(loaded(parent, large) == 1);
  }
  DOCTEST_CHECK(save(parent, 2, 10, large) == 0);
  DOCTEST_CHECK(loaded(parent, large) == 2);
}

DOCTEST_TEST_CASE("a full disk leaves the older checkpoint, no half file, and works again when there is room") {
  TempFolder temp;
  const auto parent = temp.path() / "full";
  fs::create_directory(parent);
  if (::mount("tmpfs", parent.c_str(), "tmpfs", 0, "size=8m") != 0) {
    skip(std::string("no right to mount a small file system (") + std::strerror(errno) + ")");
    return;
  }
  DOCTEST_CHECK(save(parent, 1, 1, 5'000) == 0);
  const auto files = count_files(parent);
  DOCTEST_CHECK(save(parent, 2, 1, 5'000) == 3);
  DOCTEST_CHECK(count_files(parent) == files);
  DOCTEST_CHECK(loaded(parent, 5'000) == 1);
  DOCTEST_CHECK(save(parent, 2, 2, 1'000) == 0);
  DOCTEST_CHECK(loaded(parent, 1'000) == 2);
  DOCTEST_CHECK(::umount2(parent.c_str(), MNT_DETACH) == 0);
}
