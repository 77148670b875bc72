// SPDX-License-Identifier: Apache-2.0
// What the command line prints.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <troupe/background_saver.hpp>
#include <troupe/checkpoint.hpp>

#include "checkpoint/inspect.hpp"
#include "checkpoint/scan.hpp"
#include "checkpoint/shard_writer.hpp"
#include "test/unit/checkpoint/file_size_limit.hpp"
#include "test/unit/checkpoint/sample.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

using troupe::Checkpoint;
using namespace troupe::detail;
using namespace troupe::test;

namespace {

/// "code: text".
std::string told(int (*command)(const std::filesystem::path&, std::ostream&), const std::filesystem::path& path) {
  std::ostringstream out;
  const int code = command(path, out);
  return std::to_string(code) + ": " + out.str();
}

}  // namespace

DOCTEST_TEST_CASE("ls, show and verify tell of good checkpoints and of damaged ones") {
  TempFolder temp;
  const auto parent = temp.path() / "checkpoints";
  DOCTEST_CHECK(contains(told(list_checkpoints, temp.path()), "1: there is no checkpoint in"));
  DOCTEST_CHECK(contains(told(verify_checkpoints, temp.path()), "1: there is no checkpoint in"));
  {
    troupe::BackgroundSaver saver;
    for (const int id : {1, 2}) saver.save(sample(), parent / checkpoint_name(id));
    saver.flush();
  }
  const auto list = told(list_checkpoints, temp.path());
  DOCTEST_CHECK(list.starts_with("0: checkpoint"));
  DOCTEST_CHECK(contains(list, "checkpoint_000001"));
  DOCTEST_CHECK(contains(list, "12.0 KiB"));
  const auto all = told(show_checkpoint, parent / checkpoint_name(1));
  DOCTEST_CHECK(all.starts_with("0: "));
  for (const auto* part : {"epoch", "model.w", "float32[3,1]", "bfloat16[2]", "list[2].b", "version 9"})
    DOCTEST_CHECK(contains(all, part));
  DOCTEST_CHECK(contains(told(verify_checkpoints, parent), "checkpoint_000002  ok"));
  DOCTEST_CHECK(told(verify_checkpoints, parent / checkpoint_name(2)).starts_with("0: "));

  std::ofstream(parent / checkpoint_name(2) / shard_name(0, 0), std::ios::app) << "x";
  const auto verified = told(verify_checkpoints, temp.path());
  DOCTEST_CHECK(verified.starts_with("1: "));
  DOCTEST_CHECK(contains(verified, "is damaged"));
  DOCTEST_CHECK(contains(verified, "checkpoint_000001  ok"));
  std::ofstream(parent / checkpoint_name(2) / manifest_name) << "x";
  DOCTEST_CHECK(told(list_checkpoints, parent).starts_with("1: "));
  DOCTEST_CHECK(contains(thrown_by([&] { told(show_checkpoint, temp.path() / "no"); }), "there is no such folder"));
}

DOCTEST_TEST_CASE("a saver in the background commits, and tells of the first error when it is asked") {
  TempFolder temp;
  troupe::BackgroundSaver saver;
  saver.save(sample(), temp.path() / "one");
  saver.flush();
  DOCTEST_CHECK(Checkpoint::from_path(temp.path() / "one") == sample());
  DOCTEST_CHECK(contains(thrown_by([&] { saver.save(sample(), temp.path() / "one"); }), "overwrites nothing"));
  {
    const FileSizeLimit limit(1 << 20);
    saver.save({{"w", troupe::TensorData::of(std::vector<double>(1 << 20))}}, temp.path() / "two");
    DOCTEST_CHECK(contains(thrown_by([&] { saver.flush(); }), "io: cannot get room for the file"));
  }
  DOCTEST_CHECK(std::filesystem::is_empty(temp.path() / "two"));
  saver.save(sample(), temp.path() / "three");
  saver.flush();
  DOCTEST_CHECK(Checkpoint::from_path(temp.path() / "three") == sample());
}

DOCTEST_TEST_CASE("ls and verify also see the newest one that is not among the best of its run") {
  TempFolder temp;
  sample().to_directory(temp.path() / "checkpoints" / checkpoint_name(1));
  make_folder(temp.path() / "latest");
  const auto newest = temp.path() / "latest" / checkpoint_name(4);
  sample().to_directory(newest);
  for (const auto command : {list_checkpoints, verify_checkpoints}) {
    const auto text = told(command, temp.path());
    DOCTEST_CHECK(text.starts_with("0: "));
    DOCTEST_CHECK(contains(text, "latest/checkpoint_000004"));
    DOCTEST_CHECK(contains(text, "\ncheckpoint_000001"));
  }
  std::ofstream(newest / shard_name(0, 0), std::ios::app) << "x";
  DOCTEST_CHECK(told(verify_checkpoints, temp.path()).starts_with("1: "));
}
