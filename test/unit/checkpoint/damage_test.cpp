// SPDX-License-Identifier: Apache-2.0
// Checkpoints with a byte changed or a piece missing: never a wrong value, never a crash.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "checkpoint/file.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/scan.hpp"
#include "checkpoint/shard_format.hpp"
#include "checkpoint/shard_writer.hpp"
#include "test/unit/checkpoint/newest.hpp"
#include "test/unit/checkpoint/sample.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

namespace fs = std::filesystem;
using troupe::Checkpoint;
using troupe::TensorData;
using namespace troupe::detail;
using namespace troupe::test;

namespace {

/// A folder with an older checkpoint {"epoch": 1} and a newer one.
class TwoCheckpoints {
public:
  explicit TwoCheckpoints(const Checkpoint& checkpoint) : newer(checkpoint) {
    older.to_directory(temp.path() / checkpoint_name(1));
    folder = temp.path() / checkpoint_name(2);
    make_folder(folder);
    Manifest manifest;
    manifest.id = 2;
    manifest.shards.push_back(write_shard(folder / shard_name(0, 0), newer, {}));
    commit(folder, manifest);
  }
  /// What a recovering run gets: 2 for exactly the newer one, 1 for exactly the older one, 0 for anything else.
  int loaded() const {
    const auto latest = load_latest(temp.path());
    if (!latest) return 0;
    const auto id = latest->found.manifest.id;
    const auto& expected = id == 2 ? newer : older;
    return latest->checkpoint == expected && latest->checkpoint.to_dict() == expected ? static_cast<int>(id) : 0;
  }

  TempFolder temp;
  Checkpoint older{{"epoch", 1}};
  Checkpoint newer;
  fs::path folder;
};

/// Changes one byte of a file in place.
class Patcher {
public:
  explicit Patcher(const fs::path& path) : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC), path), path_(path) {}
  void flip(std::uint64_t place, unsigned char mask) {
    unsigned char byte = 0;
    file_.read_at(place, &byte, 1);
    byte ^= mask;
    file_.write_at(place, &byte, 1);
  }
  std::uint64_t size() const { return file_.size(); }

private:
  File file_;
  fs::path path_;
};

}  // namespace

DOCTEST_TEST_CASE("a flip of any byte of a checkpoint is found, and the older one is loaded") {
  TwoCheckpoints two(sample());
  DOCTEST_REQUIRE(two.loaded() == 2);
  std::size_t flips = 0;
  for (const auto& name : {shard_name(0, 0), std::string(manifest_name)}) {
    Patcher patcher(two.folder / name);
    for (std::uint64_t place = 0; place < patcher.size(); ++place) {
      const auto mask = static_cast<unsigned char>(1U << (place % 8));
      patcher.flip(place, mask);
      if (two.loaded() != 1) {
        DOCTEST_CAPTURE(name);
        DOCTEST_CAPTURE(place);
        DOCTEST_CHECK(two.loaded() == 1);
      }
      patcher.flip(place, mask);
      ++flips;
    }
  }
  DOCTEST_CHECK(flips > 12'000);
  DOCTEST_CHECK(two.loaded() == 2);
}

DOCTEST_TEST_CASE("a bad block is an error with file and offset, and other tensors can still be read") {
  Checkpoint checkpoint{{"a", TensorData::of(std::vector<float>(600'000, 1.0F))},
                        {"b", TensorData::of(std::vector<float>(600'000, 2.0F))}};
  TwoCheckpoints two(checkpoint);
  Patcher(two.folder / shard_name(0, 0)).flip(data_offset + 3 * block_size + 17, 4);
  const auto damaged = Checkpoint::from_path(two.folder);
  DOCTEST_CHECK(damaged.at<TensorData>("a") == checkpoint.at<TensorData>("a"));
  std::vector<float> copy(600'000);
  const auto tensor = damaged.at<TensorData>("b");
  for (int round = 0; round < 2; ++round) {  // it does not heal by being asked twice
    DOCTEST_CHECK(contains(thrown_by([&] { tensor.data(); }), "bytes 3149824 to 4198399 do not match their checksum"));
    DOCTEST_CHECK(contains(thrown_by([&] { tensor.copy_to(copy.data()); }), shard_name(0, 0)));
  }
  DOCTEST_CHECK(two.loaded() == 1);
}

DOCTEST_TEST_CASE("a checkpoint cut anywhere is found, and the older one is loaded") {
  auto checkpoint = sample();
  checkpoint.set("big", TensorData::of(std::vector<double>(300'000, 0.5)));
  TwoCheckpoints two(checkpoint);
  for (const auto& name : {shard_name(0, 0), std::string(manifest_name)}) {
    const auto path = two.folder / name;
    const auto whole = read_whole(path, 1 << 24);
    const std::size_t step = name == manifest_name ? 16 : 4096;
    for (std::size_t size = 0; size < whole.size(); size += step) {
      fs::remove(path);
      File::create(path).write_at(0, whole.data(), size);
      DOCTEST_CAPTURE(size);
      DOCTEST_CHECK(two.loaded() == 1);
    }
    fs::remove(path);
    auto file = File::create(path);
    file.write_at(0, whole.data(), whole.size());
    DOCTEST_CHECK(two.loaded() == 2);
    file.write_at(whole.size(), "x", 1);
    DOCTEST_CHECK(two.loaded() == 1);
    fs::remove(path);
    DOCTEST_CHECK(two.loaded() == 1);
    File::create(path).write_at(0, whole.data(), whole.size());
  }
  DOCTEST_CHECK(two.loaded() == 2);
}

DOCTEST_TEST_CASE("a file cut after it was opened is an error, not the end of the program") {
  auto checkpoint = sample();
  checkpoint.set("big", TensorData::of(std::vector<double>(300'000, 0.5)));
  TwoCheckpoints two(checkpoint);
  const auto opened = Checkpoint::from_path(two.folder);
  fs::resize_file(two.folder / shard_name(0, 0), 8192);
  DOCTEST_CHECK(contains(thrown_by([&] { opened.to_dict(); }), "is damaged"));
}

DOCTEST_TEST_CASE("a shard of another attempt is not taken for the right one") {
  TwoCheckpoints two(sample());
  fs::remove(two.folder / shard_name(0, 0));
  write_shard(two.folder / shard_name(0, 0), sample(), {.generation = 7});
  DOCTEST_CHECK(
      contains(thrown_by([&] { Checkpoint::from_path(two.folder); }), "not the file that the manifest means"));
  DOCTEST_CHECK(two.loaded() == 1);
}
