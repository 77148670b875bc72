// SPDX-License-Identifier: Apache-2.0
// Saving behind the caller's back.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "checkpoint/shard_reader.hpp"
#include "checkpoint/writer.hpp"
#include "test/unit/checkpoint/sample.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

using troupe::Checkpoint;
using troupe::TensorData;
using namespace troupe::detail;
using namespace troupe::test;

namespace {

Checkpoint read(const std::filesystem::path& path, const ShardInfo& info) {
  return ShardReader::open(File::open(path), info)->checkpoint();
}

}  // namespace

DOCTEST_TEST_CASE("a save is a copy: what changes afterwards is not in it") {
  TempFolder temp;
  auto values = std::make_shared<std::vector<float>>(3'000'000, 1.0F);
  const TensorData tensor(troupe::DType::float32, {3'000'000}, values->data(), values);
  const Checkpoint checkpoint{{"w", tensor}, {"small", sample()}};
  CheckpointWriter writer;
  std::vector<ShardInfo> infos;
  const auto done = [&](WrittenShard result) { infos.push_back(result.info); };
  const auto path = [&](int number) { return temp.path() / std::to_string(number); };
  for (int number = 0; number < 4; ++number) {
    std::fill(values->begin(), values->end(), static_cast<float>(number));
    writer.save(checkpoint, path(number), {.rank = number}, done);
  }
  std::fill(values->begin(), values->end(), -1.0F);
  writer.flush();
  DOCTEST_REQUIRE(infos.size() == 4);
  for (int number = 0; number < 4; ++number) {
    const auto back = read(path(number), infos[number]);
    DOCTEST_CHECK(infos[number].rank == number);
    DOCTEST_CHECK(back.at<TensorData>("w") ==
                  TensorData::of(std::vector<float>(3'000'000, static_cast<float>(number))));
    DOCTEST_CHECK(back["small"] == sample());
  }
  DOCTEST_CHECK(writer.held_bytes() <= 2 * (12'000'000 + (4 << 20)));
}

DOCTEST_TEST_CASE("one is written, one waits, and the third save waits for the first") {
  TempFolder temp;
  CheckpointWriter writer;
  std::promise<void> gate;
  const auto opened = gate.get_future().share();
  std::promise<void> first_written;
  writer.save(sample(), temp.path() / "0", {}, [&](WrittenShard) {
    first_written.set_value();
    opened.wait();
  });
  first_written.get_future().wait();
  std::vector<std::string> order;
  writer.save(sample(), temp.path() / "1", {}, [&](WrittenShard) { order.push_back("1"); });
  auto third = std::async(std::launch::async, [&] {
    writer.save(sample(), temp.path() / "2", {}, [&](WrittenShard) { order.push_back("2"); });
  });
  DOCTEST_CHECK(third.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  DOCTEST_CHECK(!std::filesystem::exists(temp.path() / "1"));
  gate.set_value();
  third.get();
  writer.flush();
  DOCTEST_CHECK(order == std::vector<std::string>{"1", "2"});
}

DOCTEST_TEST_CASE("saves that do not overlap use one copy's memory") {
  TempFolder temp;
  CheckpointWriter writer;
  const Checkpoint checkpoint{{"w", TensorData::of(std::vector<float>(1'000'000))}};
  for (int number = 0; number < 3; ++number) {
    writer.save(checkpoint, temp.path() / std::to_string(number), {}, nullptr);
    writer.flush();
    DOCTEST_CHECK(writer.held_bytes() <= 4'000'000 + (2 << 20));
  }
}

DOCTEST_TEST_CASE("a save into memory leaves no file and can be read") {
  CheckpointWriter writer;
  WrittenShard result;
  writer.save(sample(), {}, {.rank = 2}, [&](WrittenShard one) { result = std::move(one); });
  writer.flush();
  DOCTEST_REQUIRE(!result.error);
  DOCTEST_REQUIRE(result.memory);
  File copy(::dup(result.memory->descriptor()), "(in memory)");
  DOCTEST_CHECK(ShardReader::open(std::move(copy), std::nullopt)->checkpoint() == sample());
}

DOCTEST_TEST_CASE("a save that fails is reported, leaves nothing, and the next one works") {
  TempFolder temp;
  CheckpointWriter writer;
  std::vector<std::string> results;
  const auto done = [&](WrittenShard result) { results.push_back(result.error ? result.error->what() : "written"); };
  writer.save(sample(), temp.path() / "no" / "shard", {}, done);
  writer.save(sample(), temp.path() / "shard", {}, done);
  writer.flush();
  DOCTEST_REQUIRE(results.size() == 2);
  DOCTEST_CHECK(contains(results[0], "cannot make the file"));
  DOCTEST_CHECK(results[1] == "written");
  const Checkpoint bad{{std::string(5000, 'k'), 1}};
  DOCTEST_CHECK(contains(thrown_by([&] { writer.save(bad, temp.path() / "bad", {}, done); }), "a key of 5000 bytes"));
  writer.save(sample(), temp.path() / "last", {}, done);
  writer.flush();
  DOCTEST_CHECK(results.size() == 3);
}

DOCTEST_TEST_CASE("the end of a writer finishes what was saved") {
  TempFolder temp;
  ShardInfo info;
  {
    CheckpointWriter writer;
    writer.save(sample(), temp.path() / "shard", {}, [&](WrittenShard result) { info = result.info; });
  }
  DOCTEST_CHECK(read(temp.path() / "shard", info) == sample());
}
