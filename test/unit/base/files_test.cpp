// SPDX-License-Identifier: Apache-2.0
// Log directories and atomically written files.
#include <doctest/doctest.h>

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/log_directory.hpp"
#include "runtime/base/write_file.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

namespace fs = std::filesystem;
using troupe::detail::make_logdir;
using troupe::detail::make_run_dir;
using troupe::detail::write_file_atomically;
using troupe::test::contains;
using troupe::test::EnvironmentGuard;
using troupe::test::read_file;
using troupe::test::TempFolder;
using troupe::test::thrown_by;

DOCTEST_TEST_CASE("without a logdir it is a dated folder in ~/troupe_results, and never an old one") {
  TempFolder home;
  EnvironmentGuard guard("HOME", home.path().c_str());
  const std::regex name(R"(train_\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}(_\d+)?)");
  std::set<fs::path> made;
  for (int i = 0; i < 20; ++i) {
    const auto path = make_logdir({});
    DOCTEST_CHECK(path.parent_path() == home.path() / "troupe_results");
    DOCTEST_CHECK(std::regex_match(path.filename().string(), name));
    DOCTEST_CHECK(fs::is_directory(path));
    made.insert(path);
  }
  DOCTEST_CHECK(made.size() == 20);
  // 20 take far less than 19 seconds, so at least one second had two.
  DOCTEST_CHECK(std::any_of(made.begin(), made.end(), [](const fs::path& p) { return p.string().ends_with("_2"); }));
}

DOCTEST_TEST_CASE("a relative logdir lies in ~/troupe_results, an absolute one where it says, and both may exist") {
  TempFolder home;
  EnvironmentGuard guard("HOME", home.path().c_str());
  for (int i = 0; i < 2; ++i) {
    DOCTEST_CHECK(make_logdir("a/b") == home.path() / "troupe_results/a/b");
    DOCTEST_CHECK(make_logdir(home.path() / "x/y") == home.path() / "x/y");
    DOCTEST_CHECK(make_logdir("~/z") == home.path() / "z");
  }
  DOCTEST_CHECK(fs::is_directory(home.path() / "troupe_results/a/b"));
  DOCTEST_CHECK(fs::is_directory(home.path() / "x/y"));
  DOCTEST_CHECK(fs::is_directory(home.path() / "z"));
}

DOCTEST_TEST_CASE("without HOME the user's entry in the password file counts") {
  EnvironmentGuard guard("HOME", nullptr);
  const passwd* entry = ::getpwuid(::getuid());
  if (entry == nullptr) {
    DOCTEST_CHECK(contains(thrown_by([] { make_logdir("x"); }), "set HOME"));
    return;
  }
  const auto option = "troupe_test_" + std::to_string(::getpid());
  const auto results = fs::path(entry->pw_dir) / "troupe_results";
  const bool there = fs::exists(results);
  DOCTEST_CHECK(make_logdir(option) == results / option);
  fs::remove(results / option);
  if (!there) fs::remove(results);
}

DOCTEST_TEST_CASE("a logdir that cannot be made is an error with its path and what to change") {
  TempFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  for (const auto& path : {folder.path() / "file", folder.path() / "file/below"}) {
    const auto text = thrown_by([&] { make_logdir(path); });
    DOCTEST_CHECK(contains(text, "io: "));
    DOCTEST_CHECK(contains(text, path.string()));
    DOCTEST_CHECK(contains(text, "something else has that name"));
  }
  const auto text = thrown_by([] { make_logdir("/proc/troupe/logs"); });  // refuses even root
  DOCTEST_CHECK(contains(text, "io: cannot make the folder /proc/troupe/logs"));
}

DOCTEST_TEST_CASE("runs are numbered from 1, after the highest there, with a folder for logs") {
  TempFolder folder;
  DOCTEST_CHECK(make_run_dir(folder.path()) == folder.path() / "run_001");
  DOCTEST_CHECK(fs::is_directory(folder.path() / "run_001/logs"));
  DOCTEST_CHECK(make_run_dir(folder.path()) == folder.path() / "run_002");
  fs::create_directory(folder.path() / "run_041");
  for (const auto* other : {"run_x", "run_", "run_99999999999999999999", "run_7_old", "logs", "run_-5"})
    fs::create_directory(folder.path() / other);
  DOCTEST_CHECK(make_run_dir(folder.path()) == folder.path() / "run_042");
  fs::create_directory(folder.path() / "run_999");
  DOCTEST_CHECK(make_run_dir(folder.path()) == folder.path() / "run_1000");
}

DOCTEST_TEST_CASE("a file with a run's name is stepped over") {
  TempFolder folder;
  std::ofstream(folder.path() / "run_001") << "x";
  DOCTEST_CHECK(make_run_dir(folder.path()) == folder.path() / "run_002");
}

DOCTEST_TEST_CASE("runs that begin at once get folders of their own") {
  TempFolder folder;
  std::vector<fs::path> made(8);
  std::vector<std::thread> threads;
  threads.reserve(made.size());
  for (auto& path : made) threads.emplace_back([&path, &folder] { path = make_run_dir(folder.path()); });
  for (auto& thread : threads) thread.join();
  DOCTEST_CHECK(std::set<fs::path>(made.begin(), made.end()).size() == made.size());
}

DOCTEST_TEST_CASE("a file is replaced as a whole and leaves nothing else behind") {
  TempFolder folder;
  const auto path = folder.path() / "run.json";
  write_file_atomically(path, "a long first content");
  const std::string second("b\0c", 3);
  write_file_atomically(path, second);
  DOCTEST_CHECK(read_file(path) == second);
  DOCTEST_CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

DOCTEST_TEST_CASE("a file that cannot be written is an error with its path, and leaves nothing behind") {
  TempFolder folder;
  const auto missing = folder.path() / "none/run.json";
  const auto text = thrown_by([&] { write_file_atomically(missing, "x"); });
  DOCTEST_CHECK(contains(text, "io: cannot write the file " + missing.string()));
  const auto taken = folder.path() / "folder";
  fs::create_directories(taken / "inside");
  DOCTEST_CHECK(contains(thrown_by([&] { write_file_atomically(taken, "x"); }), "something else has that name"));
  DOCTEST_CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}
