// SPDX-License-Identifier: Apache-2.0
// Checkpoints on disk: written, opened, found, put together, copied.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "checkpoint/file.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/scan.hpp"
#include "checkpoint/shard_writer.hpp"
#include "test/unit/checkpoint/newest.hpp"
#include "test/unit/checkpoint/sample.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

namespace fs = std::filesystem;
using troupe::Checkpoint;
using troupe::Json;
using troupe::TensorData;
using namespace troupe::detail;
using namespace troupe::test;

namespace {

/// Saves and commits the parts of ranks 0, 1, ...
fs::path save(const fs::path& parent, std::uint64_t id, const std::vector<Checkpoint>& parts) {
  const auto folder = parent / checkpoint_name(id);
  make_folder(folder);
  Manifest manifest;
  manifest.id = id;
  manifest.metrics = {{"loss", 0.5}};
  for (const auto& part : parts) {
    const ShardOptions options{.rank = static_cast<int>(manifest.shards.size()), .generation = id};
    manifest.shards.push_back(write_shard(folder / shard_name(options.rank, id), part, options));
  }
  commit(folder, manifest);
  return folder;
}

/// Rows [first, last) of a 10 x 3 tensor in which each value is its place.
TensorData rows(std::int64_t first, std::int64_t last) {
  std::vector<float> values;
  for (auto value = first * 3; value < last * 3; ++value) values.push_back(static_cast<float>(value));
  return TensorData::of(values, std::vector<std::int64_t>{last - first, 3});
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
std::string read(const fs::path& path) { return read_whole(path, 1 << 20); }

}  // namespace

DOCTEST_TEST_CASE("a checkpoint comes back from disk as it was, small and large") {
  TempFolder temp;
  const auto small = sample();
  auto large = small;
  for (int i = 0; i < 5; ++i)
    large.set("big" + std::to_string(i), TensorData::of(std::vector<float>(700'001, 0.5F + static_cast<float>(i))));
  int number = 0;
  for (const auto& one : {small, large, Checkpoint{}}) {
    const auto folder = temp.path() / std::to_string(++number);
    one.to_directory(folder);
    const auto back = Checkpoint::from_path(folder);
    DOCTEST_CHECK(back == one);
    DOCTEST_CHECK(back.to_dict() == one);
    DOCTEST_CHECK(back.path() == folder);
    DOCTEST_CHECK(back.world_size() == 1);
    DOCTEST_CHECK(Checkpoint::from_directory(folder) == one);
    DOCTEST_CHECK(back.as_directory().path() == folder);
  }
  auto changed = Checkpoint::from_path(temp.path() / "1");
  changed.set("epoch", 5);
  DOCTEST_CHECK(changed.path().empty());
}

DOCTEST_TEST_CASE("tensors of a checkpoint outlive it, and its folder's removal") {
  TempFolder temp;
  TensorData tensor;
  {
    const auto folder = save(temp.path(), 1, {sample()});
    tensor = Checkpoint::from_path(folder)["model"]["w"].as<TensorData>();
    remove_checkpoint(folder);
    DOCTEST_CHECK(!fs::exists(folder));
  }
  DOCTEST_CHECK(tensor == sample()["model"]["w"].as<TensorData>());
}

DOCTEST_TEST_CASE("files of a checkpoint are for their owner only, and never overwritten") {
  TempFolder temp;
  const auto folder = save(temp.path(), 1, {sample()});
  struct stat status{};
  DOCTEST_REQUIRE(::stat((folder / shard_name(0, 1)).c_str(), &status) == 0);
  DOCTEST_CHECK((status.st_mode & 0777) == 0600);
  DOCTEST_CHECK(
      contains(thrown_by([&] { write_shard(folder / shard_name(0, 1), {}, {}); }), "io: cannot make the file"));
  DOCTEST_CHECK(Checkpoint::from_path(folder) == sample());
  DOCTEST_CHECK(contains(thrown_by([&] { sample().to_directory(folder); }), "a checkpoint overwrites nothing"));
}

DOCTEST_TEST_CASE("what is not committed is not there") {
  TempFolder temp;
  DOCTEST_CHECK(contains(thrown_by([&] { Checkpoint::from_path(temp.path() / "no"); }), "there is no such folder"));
  write_shard(temp.path() / shard_name(0, 1), sample(), {});
  DOCTEST_CHECK(contains(thrown_by([&] { Checkpoint::from_path(temp.path()); }), "it has no manifest.json"));
}

DOCTEST_TEST_CASE("the highest number is the latest, and what was not finished is swept") {
  TempFolder temp;
  DOCTEST_CHECK(scan(temp.path() / "no").empty());
  save(temp.path(), 2, {{{"epoch", 2}}});
  save(temp.path(), 10, {{{"epoch", 10}}});
  save(temp.path(), 1, {{{"epoch", 1}}});
  write_shard(fs::path(temp.path()) / ".x.tmp", {}, {});
  fs::create_directory(temp.path() / checkpoint_name(11));
  write_shard(temp.path() / checkpoint_name(11) / shard_name(0, 0), sample(), {});
  write(temp.path() / checkpoint_name(10) / ".manifest.1.1.tmp", "half");
  fs::create_directory(temp.path() / "checkpoint_mine");
  fs::create_directory(temp.path() / checkpoint_name(12));
  write(temp.path() / checkpoint_name(12) / manifest_name, "damaged");

  std::vector<std::string> damaged;
  const auto found = scan(temp.path(), &damaged);
  DOCTEST_REQUIRE(found.size() == 3);
  DOCTEST_CHECK(found[0].manifest.id == 10);
  DOCTEST_CHECK(found[2].manifest.id == 1);
  DOCTEST_CHECK(found[0].manifest.metrics == Json{{"loss", 0.5}});
  DOCTEST_REQUIRE(damaged.size() == 1);
  DOCTEST_CHECK(contains(damaged[0], checkpoint_name(12)));

  sweep(temp.path());
  DOCTEST_CHECK(!fs::exists(temp.path() / ".x.tmp"));
  DOCTEST_CHECK(!fs::exists(temp.path() / checkpoint_name(11)));
  DOCTEST_CHECK(!fs::exists(temp.path() / checkpoint_name(10) / ".manifest.1.1.tmp"));
  DOCTEST_CHECK(fs::exists(temp.path() / checkpoint_name(12)));
  DOCTEST_CHECK(fs::exists(temp.path() / "checkpoint_mine"));
  const auto latest = load_latest(temp.path());
  DOCTEST_REQUIRE(latest.has_value());
  DOCTEST_CHECK(latest->checkpoint.at<int>("epoch") == 10);
  DOCTEST_CHECK(latest->skipped.size() == 1);
}

DOCTEST_TEST_CASE("names of checkpoints are numbers of six digits or more") {
  DOCTEST_CHECK(checkpoint_name(1) == "checkpoint_000001");
  DOCTEST_CHECK(checkpoint_id("checkpoint_000001") == 1);
  DOCTEST_CHECK(checkpoint_id("checkpoint_1234567") == 1234567);
  for (const auto* name : {"checkpoint_1", "checkpoint_00000x", "checkpoint_0000001", "checkpoint_", "x_000001", ""})
    DOCTEST_CHECK(!checkpoint_id(name));
}

DOCTEST_TEST_CASE("a checkpoint of three ranks loads on one, two, three and five") {
  TempFolder temp;
  std::vector<Checkpoint> parts;
  const std::vector<std::int64_t> bounds{0, 4, 4, 10};  // rank 1 holds no row
  for (int rank = 0; rank < 3; ++rank) {
    const auto first = bounds[rank];
    const auto shard = rows(first, bounds[rank + 1]).as_shard_of({10, 3}, first);
    parts.push_back({{"epoch", 4}, {"rank", rank}, {"opt", {{"w", shard}, {"list", {shard, 1}}}}});
  }
  parts[2].set("only", {{"two", rows(0, 1)}});
  const auto folder = save(temp.path(), 1, parts);
  for (const int world : {1, 2, 3, 5}) {
    DOCTEST_CAPTURE(world);
    std::int64_t next = 0;
    for (int rank = 0; rank < world; ++rank) {
      const auto part = Checkpoint::from_path(folder).part(rank, world);
      DOCTEST_CHECK(part.at<int>("epoch") == 4);
      DOCTEST_CHECK(part.at<int>("rank") == rank % 3);
      if (world == 3) {
        DOCTEST_CHECK(part == parts[rank]);
        continue;
      }
      DOCTEST_CHECK(part["only"]["two"].as<TensorData>() == rows(0, 1));
      const auto tensor = part["opt"]["w"].as<TensorData>();
      const auto last = next + tensor.shape()[0];
      const auto expected = world == 1 ? rows(0, 10) : rows(next, last).as_shard_of({10, 3}, next);
      DOCTEST_CHECK(tensor == expected);
      DOCTEST_CHECK(part.to_dict()["opt"]["list"].at(0).as<TensorData>() == expected);
      next = last;
    }
    DOCTEST_CHECK((world == 3 || next == 10));
  }
  DOCTEST_CHECK(Checkpoint::from_path(folder).world_size() == 3);
  DOCTEST_CHECK(contains(thrown_by([&] { Checkpoint::from_path(folder).part(2, 2); }), "no rank 2 among 2"));
}

DOCTEST_TEST_CASE("rows that are missing or there twice are refused with the tensor's name") {
  const auto part = [](std::int64_t first, std::int64_t last) {
    return Checkpoint{{"m", {{"w", rows(first, last).as_shard_of({10, 3}, first)}}}};
  };
  DOCTEST_CHECK(contains(thrown_by([&] { reshard({part(0, 4), part(5, 10)}, 0, 1); }), R"(["m"]["w"]: row 4)"));
  DOCTEST_CHECK(contains(thrown_by([&] { reshard({part(0, 4), part(3, 10)}, 0, 1); }), "row 3"));
  DOCTEST_CHECK(contains(thrown_by([&] { reshard({part(0, 4), part(4, 9)}, 0, 1); }), "row 9 was saved by no rank"));
  const Checkpoint other{{"m", {{"w", 1}}}};
  DOCTEST_CHECK(contains(thrown_by([&] { reshard({part(0, 4), other}, 0, 1); }), "not save rows of the same tensor"));
}

DOCTEST_TEST_CASE("a folder of files is copied into a checkpoint and out of it, with checksums") {
  TempFolder temp;
  const auto mine = temp.path() / "mine";
  fs::create_directories(mine / "sub");
  write(mine / "a.txt", "alpha");
  write(mine / "sub" / "b.bin", std::string(2'000'000, 'b'));
  write(mine / "empty", "");
  const auto folder = temp.path() / checkpoint_name(1);
  make_folder(folder);
  Manifest manifest;
  manifest.id = 1;
  manifest.has_files = true;
  manifest.files = copy_files(mine, folder / files_folder);
  commit(folder, manifest);

  const auto checkpoint = Checkpoint::from_path(folder);
  DOCTEST_CHECK(checkpoint.has_files());
  DOCTEST_CHECK(checkpoint.empty());
  DOCTEST_CHECK(read(checkpoint.as_directory().path() / "a.txt") == "alpha");
  checkpoint.to_directory(temp.path() / "out");
  DOCTEST_CHECK(read(temp.path() / "out" / "a.txt") == "alpha");
  DOCTEST_CHECK(fs::file_size(temp.path() / "out" / "sub" / "b.bin") == 2'000'000);
  DOCTEST_CHECK(fs::exists(temp.path() / "out" / "empty"));

  const auto plain = Checkpoint::from_directory(mine);
  DOCTEST_CHECK(plain.has_files());
  DOCTEST_CHECK(plain.as_directory().path() == mine);
  plain.to_directory(temp.path() / "copy");
  DOCTEST_CHECK(read(temp.path() / "copy" / "a.txt") == "alpha");

  write(folder / files_folder / "a.txt", "alphA");
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.as_directory(); }), "a.txt is damaged: its content"));
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.to_directory(temp.path() / "out2"); }), "a.txt is damaged"));
  write(folder / files_folder / "a.txt", "al");
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.as_directory(); }), "2 bytes instead of 5"));
  fs::create_symlink("nowhere", mine / "link");
  DOCTEST_CHECK(contains(thrown_by([&] { copy_files(mine, temp.path() / "x"); }), "neither a file nor a folder"));
}

DOCTEST_TEST_CASE("a link to a folder and a name that is not UTF-8 are refused, and nothing is saved silently") {
  TempFolder temp;
  const auto mine = temp.path() / "mine";
  fs::create_directories(temp.path() / "elsewhere");
  std::ofstream(temp.path() / "elsewhere" / "model.bin") << "weights";
  fs::create_directories(mine);
  fs::create_directory_symlink(temp.path() / "elsewhere", mine / "link");
  const auto refused = [&] { return thrown_by([&] { copy_files(mine, temp.path() / "copy"); }); };
  DOCTEST_CHECK(contains(refused(), "mine/link is neither a file nor a folder"));
  fs::remove(mine / "link");
  fs::remove_all(temp.path() / "copy");
  std::ofstream(mine / "caf\xe9.bin") << "x";
  DOCTEST_CHECK(contains(refused(), "is not UTF-8"));
  DOCTEST_CHECK(contains(refused(), "caf"));
  fs::remove(mine / "caf\xe9.bin");
  fs::remove_all(temp.path() / "copy");
  std::ofstream(mine / "caf\xc3\xa9.bin") << "x";
  fs::create_symlink(temp.path() / "elsewhere" / "model.bin", mine / "model.bin");  // the file it leads to is saved
  DOCTEST_CHECK(copy_files(mine, temp.path() / "copy").size() == 2);
}

DOCTEST_TEST_CASE("a folder of files may have a manifest.json of its own, and a damaged one of ours is none of them") {
  TempFolder temp;
  const auto mine = temp.path() / "mine";
  fs::create_directories(mine);
  std::ofstream(mine / "manifest.json") << R"({"name": "my model"})";
  std::ofstream(mine / "model.bin") << "weights";
  const auto files = Checkpoint::from_directory(mine);
  DOCTEST_CHECK(files.has_files());
  files.to_directory(temp.path() / "copy");
  DOCTEST_CHECK(read_file(temp.path() / "copy" / "manifest.json") == R"({"name": "my model"})");

  const auto saved = temp.path() / "saved";
  Checkpoint{{"epoch", 1}}.to_directory(saved);
  DOCTEST_CHECK(Checkpoint::from_directory(saved) == Checkpoint{{"epoch", 1}});
  std::ofstream(saved / "manifest.json") << "";
  DOCTEST_CHECK(contains(thrown_by([&] { Checkpoint::from_directory(saved); }), "damaged"));
}

DOCTEST_TEST_CASE("a manifest that could not be read again is not written") {
  TempFolder temp;
  Manifest manifest;
  manifest.id = 1;
  manifest.has_files = true;
  manifest.metrics["history"] = std::string(std::size_t{65} << 20, 'x');
  DOCTEST_CHECK(contains(thrown_by([&] { commit(temp.path(), manifest); }), "too_large: "));
  DOCTEST_CHECK(fs::is_empty(temp.path()));
}

DOCTEST_TEST_CASE("a checkpoint in memory becomes a temporary folder") {
  fs::path path;
  {
    const auto directory = sample().as_directory();
    path = directory.path();
    DOCTEST_CHECK(Checkpoint::from_path(path) == sample());
  }
  DOCTEST_CHECK(!fs::exists(path));
}

DOCTEST_TEST_CASE("a manifest that leads elsewhere is refused") {
  Manifest manifest;
  const auto refused = [&] { return thrown_by([&] { parse_manifest(write_manifest(manifest), "m"); }); };
  DOCTEST_CHECK(contains(refused(), "either shards or files"));
  manifest.shards = {{"../other.bin", 0, 1, 1}};
  DOCTEST_CHECK(contains(refused(), "not the name of a shard"));
  manifest.shards = {{"a.bin", 1, 1, 1}};
  DOCTEST_CHECK(contains(refused(), "not those of the ranks"));
  manifest.shards.clear();
  manifest.has_files = true;
  for (const auto* name : {"/etc/passwd", "../x", "a/../../x", ""}) {
    manifest.files = {{name, 1, 1}};
    DOCTEST_CHECK(contains(refused(), "not the name of a file"));
  }
}
