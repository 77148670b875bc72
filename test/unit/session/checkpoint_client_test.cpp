// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/checkpoint_client.hpp"

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include <troupe/error.hpp>

#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

using namespace troupe;
using namespace troupe::detail;
namespace fs = std::filesystem;

namespace {

/// Rank 1 of two, which saves nothing itself: the first rank's state is kept.
struct LateRank {
  LateRank() : client(1, 2, {}, [](const SavedPart&) {}) {}

  /// The keeper has committed this one.
  SaveResult committed(std::uint64_t number) const {
    const auto place = folder_of(number);
    Checkpoint{{"number", number}}.to_directory(place);
    SaveResult result{1, number, {}, {}};
    result.source.id = number;
    result.source.folder = place.string();
    return result;
  }
  fs::path folder_of(std::uint64_t number) const { return folder.path() / std::to_string(number); }
  void save() { client.save({{"number", 0}}, false, 0, nullptr); }

  test::TempFolder folder;
  CheckpointClient client;
};

}  // namespace

DOCTEST_TEST_CASE("a late rank loads the checkpoint that it has come to while that one is there") {
  LateRank rank;
  rank.save();
  for (std::uint64_t number : {1, 2, 3}) rank.client.answer(rank.committed(number));
  DOCTEST_CHECK(rank.client.load().checkpoint->at<int>("number") == 1);
}

DOCTEST_TEST_CASE("a rank so late that its checkpoint was removed loads the newest one") {
  LateRank rank;
  rank.save();
  for (std::uint64_t number : {1, 2, 3}) rank.client.answer(rank.committed(number));
  fs::remove_all(rank.folder_of(1));
  DOCTEST_CHECK(rank.client.load().checkpoint->at<int>("number") == 3);
}

DOCTEST_TEST_CASE("a late rank waits for the answer that names the newer checkpoint") {
  LateRank rank;
  rank.save();
  rank.client.answer(rank.committed(1));
  fs::remove_all(rank.folder_of(1));
  const auto newer = rank.committed(2);
  std::jthread keeper([&] { rank.client.answer(newer); });
  DOCTEST_CHECK(rank.client.load().checkpoint->at<int>("number") == 2);
}

DOCTEST_TEST_CASE("a damaged checkpoint is an error and not taken for a removed one") {
  LateRank rank;
  rank.save();
  for (std::uint64_t number : {1, 2}) rank.client.answer(rank.committed(number));
  fs::resize_file(rank.folder_of(1) / "manifest.json", 10);
  DOCTEST_CHECK(test::contains(test::thrown_by([&] { rank.client.load(); }), "io: "));
}

DOCTEST_TEST_CASE("a rank that can do nothing but wait for a save tells which") {
  std::vector<std::uint64_t> awaited;
  CheckpointClient* self = nullptr;
  std::jthread keeper;
  CheckpointClient client(
      0, 2, {}, [](const SavedPart&) {},
      [&](std::uint64_t number) {
        awaited.push_back(number);
        keeper = std::jthread([self, number] { self->answer({1, number, {}, "it was lost"}); });
      });
  self = &client;
  const auto save = [&] { client.save({{"number", 0}}, true, 0, nullptr); };
  save();
  save();
  DOCTEST_CHECK(awaited.empty());
  save();  // while two are under way
  DOCTEST_CHECK(awaited == std::vector<std::uint64_t>{1});
  client.flush();
  DOCTEST_CHECK(awaited == std::vector<std::uint64_t>{1, 3});
  client.flush();
  DOCTEST_CHECK(awaited.size() == 2);
  keeper.join();  // it may still be inside answer()
}

DOCTEST_TEST_CASE("a late rank takes no part in saves that were decided without it") {
  std::vector<std::uint64_t> sent;
  std::vector<std::uint64_t> awaited;
  CheckpointClient client(
      0, 2, {}, [&](const SavedPart& part) { sent.push_back(part.number); },
      [&](std::uint64_t number) { awaited.push_back(number); });
  const auto save = [&] { client.save({{"number", 0}}, true, 0, nullptr); };
  client.answer({1, 3, {}, "it was lost"});
  for (int i = 0; i < 5; ++i) save();
  DOCTEST_CHECK(sent == std::vector<std::uint64_t>{4, 5});
  client.answer({1, 5, {}, {}});
  client.flush();
  DOCTEST_CHECK(awaited.empty());
}

DOCTEST_TEST_CASE("a late rank that is stopped does not wait for a newer checkpoint") {
  LateRank rank;
  rank.save();
  rank.client.answer(rank.committed(1));
  fs::remove_all(rank.folder_of(1));
  rank.client.stop();
  DOCTEST_CHECK(test::contains(test::thrown_by([&] { rank.client.load(); }), "io: "));
}
