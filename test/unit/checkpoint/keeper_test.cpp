// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/keeper.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "checkpoint/scan.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

using namespace troupe;
using detail::CheckpointKeeper;
using detail::KeeperOptions;
using detail::SavedPart;
using test::TempFolder;
namespace fs = std::filesystem;

namespace {

/// A part as a rank would send it.
SavedPart part(std::uint64_t generation, std::uint64_t number, const Checkpoint& state, int rank = 0, int parts = 1) {
  SavedPart made;
  made.generation = generation;
  made.number = number;
  made.rank = rank;
  made.parts = parts;
  made.iteration = static_cast<std::int64_t>(number);
  made.bytes = detail::encode(state);
  return made;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

/// Saves one checkpoint of one rank; it must be committed.
void save(CheckpointKeeper& keeper, std::uint64_t generation, std::uint64_t number, const Checkpoint& state) {
  const auto over = keeper.add(part(generation, number, state));
  DOCTEST_REQUIRE(over.size() == 1);
  DOCTEST_CHECK(over[0].result.error == "");
  DOCTEST_CHECK(over[0].fatal == "");
  DOCTEST_CHECK(over[0].result.number == number);
}

/// In the middle of every file but the manifest.
void flip_a_byte(const fs::path& checkpoint) {
  for (const auto& file : fs::recursive_directory_iterator(checkpoint)) {
    if (!file.is_regular_file() || file.path().filename() == "manifest.json") continue;
    std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(file.file_size() / 2));
    stream.put('\x7f');
  }
}

/// The program may have so many files open.
class FileCountLimit {
public:
  explicit FileCountLimit(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit now{most, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FileCountLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FileCountLimit(const FileCountLimit&) = delete;
  FileCountLimit& operator=(const FileCountLimit&) = delete;

private:
  rlimit before_{};
};

/// To who saves once more what was decided: it waits no longer, and that is all.
bool is_plain_answer(const std::vector<CheckpointKeeper::Over>& over) {
  return over.size() == 1 && !over[0].result.source && over[0].result.error.empty() && over[0].fatal.empty();
}

}  // namespace

DOCTEST_TEST_CASE("a keeper commits what rank 0 saved and gives it back") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  const auto setup = keeper.begin_attempt(7);
  DOCTEST_CHECK(setup.generation == 7);
  DOCTEST_CHECK(setup.first_id == 1);
  DOCTEST_CHECK(!setup.start);
  DOCTEST_CHECK(keeper.latest() == std::nullopt);
  DOCTEST_CHECK(keeper.best_path().empty());
  save(keeper, 7, 1, {{"epoch", 0}});
  save(keeper, 7, 2, {{"epoch", 1}, {"weights", TensorData::of<float>({1, 2, 3})}});
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 1}, {"weights", TensorData::of<float>({1, 2, 3})}});
  DOCTEST_CHECK(keeper.latest_path() == run.path() / "checkpoints" / "checkpoint_000002");
  DOCTEST_CHECK(keeper.best_path() == keeper.latest_path());
  DOCTEST_CHECK(names_in(keeper.folder()) == std::set<std::string>{"checkpoint_000001", "checkpoint_000002"});
  DOCTEST_CHECK(Checkpoint::from_path(keeper.folder() / "checkpoint_000001") == Checkpoint{{"epoch", 0}});
  DOCTEST_CHECK(keeper.committed() == 2);
  keeper.close();
}

DOCTEST_TEST_CASE("a keeper holds the two best of the guide's example, and the newest outside them") {
  TempFolder run;
  CheckpointKeeper keeper(
      {.directory = run.path(),
       .strategy = {.num_to_keep = 2, .checkpoint_score_attribute = "loss", .checkpoint_score_order = "min"}});
  keeper.begin_attempt(1);
  std::uint64_t number = 0;
  for (int loss : {2, 4, 1, 3}) save(keeper, 1, ++number, {{"loss", loss}});
  keeper.close();
  DOCTEST_CHECK(names_in(keeper.folder()) == std::set<std::string>{"checkpoint_000001", "checkpoint_000003"});
  DOCTEST_CHECK(keeper.best_path().filename() == "checkpoint_000003");
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"loss", 3}});
  DOCTEST_CHECK(keeper.latest_path().filename() == "checkpoint_000004");
  DOCTEST_CHECK(Checkpoint::from_path(keeper.latest_path()) == Checkpoint{{"loss", 3}});
  const auto best = keeper.best();
  DOCTEST_REQUIRE(best.size() == 2);
  DOCTEST_CHECK(best[0].first == Checkpoint{{"loss", 1}});
  DOCTEST_CHECK(best[1].first == Checkpoint{{"loss", 2}});
  keeper.drop_spare_latest();
  DOCTEST_CHECK(names_in(run.path()) == std::set<std::string>{"checkpoints"});
  DOCTEST_CHECK(keeper.best_path().filename() == "checkpoint_000003");
}

DOCTEST_TEST_CASE("a keeper of nothing writes no file and still gives the latest") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path(), .strategy = {.num_to_keep = 0}});
  DOCTEST_CHECK(keeper.begin_attempt(1).folder.empty());
  save(keeper, 1, 1, {{"epoch", 0}});
  save(keeper, 1, 2, {{"epoch", 1}});
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 1}});
  DOCTEST_CHECK(keeper.best_path().empty());
  DOCTEST_CHECK(keeper.latest_path().empty());
  const auto again = keeper.begin_attempt(2);
  DOCTEST_CHECK(detail::decode(again.start.bytes) == Checkpoint{{"epoch", 1}});
  DOCTEST_CHECK(again.first_id == 3);
  keeper.close();
  DOCTEST_CHECK(names_in(run.path()).empty());
}

DOCTEST_TEST_CASE("a sharded checkpoint is committed when every rank's part is there") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  DOCTEST_CHECK(keeper.add(part(1, 1, {{"rank", 1}}, 1, 2)).empty());
  DOCTEST_CHECK(keeper.latest() == std::nullopt);
  const auto over = keeper.add(part(1, 1, {{"rank", 0}}, 0, 2));
  DOCTEST_REQUIRE(over.size() == 1);
  DOCTEST_CHECK(over[0].result.error == "");
  DOCTEST_CHECK(keeper.committed() == 1);
  DOCTEST_CHECK(keeper.latest().has_value());
}

DOCTEST_TEST_CASE("checkpoints are committed in the order they were saved") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  DOCTEST_CHECK(keeper.add(part(1, 1, {{"first", 0}}, 0, 2)).empty());
  DOCTEST_CHECK(keeper.add(part(1, 2, {{"second", 0}})).empty());
  DOCTEST_CHECK(keeper.add(part(1, 1, {{"first", 1}}, 1, 2)).size() == 2);
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"second", 0}});
}

DOCTEST_TEST_CASE("a new attempt goes on after the last committed checkpoint and refuses parts of the old one") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  save(keeper, 1, 1, {{"epoch", 0}});
  DOCTEST_CHECK(keeper.add(part(1, 2, {{"epoch", 1}}, 0, 2)).empty());  // rank 1 died
  const auto setup = keeper.begin_attempt(2);
  DOCTEST_CHECK(setup.first_id == 2);
  DOCTEST_CHECK(setup.start.iteration == 1);
  DOCTEST_CHECK(detail::decode(setup.start.bytes) == Checkpoint{{"epoch", 0}});
  DOCTEST_CHECK(keeper.add(part(1, 2, {{"epoch", 1}}, 1, 2)).empty());  // of a zombie
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 0}});
  save(keeper, 2, 1, {{"epoch", 1}});
  DOCTEST_CHECK(keeper.latest_path().filename() == "checkpoint_000002");
}

DOCTEST_TEST_CASE("a start checkpoint is the latest until one is saved") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path(), .start = Checkpoint{{"epoch", 2}, {"model", 3}}});
  const auto setup = keeper.begin_attempt(1);
  DOCTEST_CHECK(detail::decode(setup.start.bytes) == Checkpoint{{"epoch", 2}, {"model", 3}});
  DOCTEST_CHECK(setup.start.iteration == 0);
  DOCTEST_CHECK(setup.first_id == 1);
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 2}, {"model", 3}});
  save(keeper, 1, 1, {{"epoch", 3}});
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 3}});
}

DOCTEST_TEST_CASE("a missing or wrong score ends the run and does not lose the checkpoint") {
  TempFolder run;
  CheckpointKeeper keeper(
      {.directory = run.path(), .strategy = {.num_to_keep = 1, .checkpoint_score_attribute = "loss"}});
  keeper.begin_attempt(1);
  auto over = keeper.add(part(1, 1, {{"epoch", 0}}));
  DOCTEST_REQUIRE(over.size() == 1);
  DOCTEST_CHECK(test::contains(over[0].fatal, "\"loss\""));
  DOCTEST_CHECK(over[0].result.error == "");
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 0}});
  DOCTEST_CHECK(fs::exists(keeper.latest_path()));
  over = keeper.add(part(1, 2, {{"loss", "low"}}));
  DOCTEST_CHECK(test::contains(over.at(0).fatal, "number"));
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"loss", "low"}});
  DOCTEST_CHECK(keeper.errors().size() == 2);
}

DOCTEST_TEST_CASE("checkpoints that cannot be ranked stay and evict nobody, also in a run that goes on") {
  TempFolder run;
  KeeperOptions options{
      .directory = run.path(),
      .strategy = {.num_to_keep = 1, .checkpoint_score_attribute = "los", .checkpoint_score_order = "min"}};
  std::set<std::string> all;
  {
    CheckpointKeeper keeper(options);
    keeper.begin_attempt(1);
    for (std::uint64_t number = 1; number <= 4; ++number) {
      all.insert(detail::checkpoint_name(number));
      DOCTEST_CHECK(test::contains(keeper.add(part(1, number, {{"loss", number}})).at(0).fatal, "\"los\""));
    }
    keeper.close();
    DOCTEST_CHECK(names_in(keeper.folder()) == all);
    DOCTEST_CHECK(keeper.best().empty());
    DOCTEST_CHECK(keeper.latest() == Checkpoint{{"loss", 4}});
    DOCTEST_CHECK(keeper.errors().size() == 4);
  }
  options.resume = true;
  {
    CheckpointKeeper keeper(options);
    keeper.begin_attempt(2);
    keeper.close();
    DOCTEST_CHECK(names_in(keeper.folder()) == all);
    DOCTEST_CHECK(keeper.errors().size() == 4);
  }
  // With the right one they are what they would have been.
  options.strategy.checkpoint_score_attribute = "loss";
  CheckpointKeeper keeper(options);
  DOCTEST_CHECK(names_in(keeper.folder()) == std::set<std::string>{"checkpoint_000001"});
  DOCTEST_CHECK(names_in(run.path() / "latest") == std::set<std::string>{"checkpoint_000004"});
  DOCTEST_CHECK(keeper.errors().empty());
}

DOCTEST_TEST_CASE("a checkpoint that is saved and cannot be moved is told, and training goes on") {
  TempFolder run;
  CheckpointKeeper keeper(
      {.directory = run.path(),
       .strategy = {.num_to_keep = 1, .checkpoint_score_attribute = "loss", .checkpoint_score_order = "min"}});
  std::ofstream(run.path() / "latest") << "in the way";
  keeper.begin_attempt(1);
  for (std::uint64_t number = 1; number <= 3; ++number) save(keeper, 1, number, {{"loss", number}});
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"loss", 3}});
  DOCTEST_CHECK(names_in(keeper.folder()) == std::set<std::string>{"checkpoint_000001", "checkpoint_000003"});
  DOCTEST_REQUIRE(keeper.errors().size() == 2);
  DOCTEST_CHECK(test::contains(keeper.errors()[0], "checkpoint 2 could not be moved"));
  keeper.close();
}

DOCTEST_TEST_CASE("the score may stand in the metrics that were reported with a checkpoint") {
  TempFolder run;
  CheckpointKeeper keeper(
      {.directory = run.path(),
       .strategy = {.num_to_keep = 1, .checkpoint_score_attribute = "loss", .checkpoint_score_order = "min"}});
  keeper.begin_attempt(1);
  auto first = part(1, 1, {{"epoch", 0}});
  first.metrics = {{"loss", 0.5}};
  auto second = part(1, 2, {{"epoch", 1}});
  second.metrics = {{"loss", 0.7}};
  DOCTEST_CHECK(keeper.add(std::move(first)).at(0).fatal == "");
  DOCTEST_CHECK(keeper.add(std::move(second)).at(0).fatal == "");
  DOCTEST_CHECK(keeper.best_path().filename() == "checkpoint_000001");
  DOCTEST_CHECK(keeper.best().at(0).second == Json{{"loss", 0.5}});
}

DOCTEST_TEST_CASE("a save that failed on its rank is told and leaves the one before") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  save(keeper, 1, 1, {{"epoch", 0}});
  auto bad = part(1, 2, {});
  bad.bytes.clear();
  bad.error = "no space left";
  const auto over = keeper.add(std::move(bad));
  DOCTEST_REQUIRE(over.size() == 1);
  DOCTEST_CHECK(test::contains(over[0].result.error, "no space left"));
  DOCTEST_CHECK(over[0].fatal == "");
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 0}});
  DOCTEST_REQUIRE(keeper.errors().size() == 1);
  DOCTEST_CHECK(test::contains(keeper.errors()[0], "no space left"));
}

DOCTEST_TEST_CASE("a run that died goes on with its newest whole checkpoint") {
  TempFolder run;
  {
    CheckpointKeeper keeper({.directory = run.path()});
    keeper.begin_attempt(1);
    for (std::uint64_t number = 1; number <= 3; ++number) save(keeper, 1, number, {{"epoch", number}});
  }
  fs::create_directories(run.path() / "checkpoints" / "checkpoint_000009");  // never committed
  for (const auto& file : fs::recursive_directory_iterator(run.path() / "checkpoints" / "checkpoint_000003"))
    if (file.is_regular_file() && file.file_size() > 0) {  // damaged
      std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      stream.seekp(static_cast<std::streamoff>(file.file_size() / 2));
      stream.put('\x7f');
    }
  CheckpointKeeper keeper({.directory = run.path(), .resume = true});
  const auto setup = keeper.begin_attempt(1);
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 2}});
  DOCTEST_CHECK(setup.start.iteration == 2);
  DOCTEST_CHECK(setup.first_id == 4);
  DOCTEST_CHECK(!fs::exists(run.path() / "checkpoints" / "checkpoint_000009"));
}

DOCTEST_TEST_CASE("a large start checkpoint reaches the ranks without a message of its size") {
  TempFolder run;
  const Checkpoint large{{"weights", TensorData::of(std::vector<float>(100'000, 2.5F))}};
  CheckpointKeeper keeper({.directory = run.path(), .strategy = {.num_to_keep = 0}, .start = large});
  const auto setup = keeper.begin_attempt(1);
  DOCTEST_CHECK(setup.start.bytes.empty());
  DOCTEST_CHECK(detail::open_source(setup.start) == large);
}

DOCTEST_TEST_CASE("storage holds what is kept, and an empty run goes on from it") {
  TempFolder run, bucket;
  const KeeperOptions options{.directory = run.path() / "train" / "run_001",
                              .strategy = {.num_to_keep = 1},
                              .storage_path = bucket.path().string()};
  {
    CheckpointKeeper keeper(options);
    keeper.begin_attempt(1);
    for (std::uint64_t number = 1; number <= 3; ++number) save(keeper, 1, number, {{"epoch", number}});
    keeper.close();
    DOCTEST_CHECK(keeper.errors().empty());
  }
  DOCTEST_CHECK(names_in(bucket.path() / "train" / "run_001") == std::set<std::string>{"checkpoint_000003"});
  fs::remove_all(run.path() / "train");
  auto resumed = options;
  resumed.resume = true;
  CheckpointKeeper keeper(resumed);
  DOCTEST_CHECK(keeper.begin_attempt(1).first_id == 4);
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 3}});
}

DOCTEST_TEST_CASE("an empty run goes on from the newest stored checkpoint that is whole") {
  TempFolder run, bucket;
  KeeperOptions options{.directory = run.path() / "train" / "run_001", .storage_path = bucket.path().string()};
  {
    CheckpointKeeper keeper(options);
    keeper.begin_attempt(1);
    for (std::uint64_t number = 1; number <= 3; ++number) save(keeper, 1, number, {{"epoch", number}});
    keeper.close();
  }
  fs::remove_all(run.path() / "train");
  const auto stored = bucket.path() / "train" / "run_001";
  flip_a_byte(stored / "checkpoint_000003");
  options.resume = true;
  {
    CheckpointKeeper keeper(options);
    DOCTEST_CHECK(keeper.begin_attempt(1).first_id == 4);  // the name of the damaged one is taken
    DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 2}});
    DOCTEST_CHECK(names_in(keeper.folder()) == std::set<std::string>{"checkpoint_000002"});
    DOCTEST_REQUIRE(keeper.errors().size() == 1);
    DOCTEST_CHECK(test::contains(keeper.errors()[0], "checkpoint_000003 in "));
    save(keeper, 1, 1, {{"epoch", 4}});
    keeper.close();
    DOCTEST_CHECK(keeper.errors().size() == 1);
    DOCTEST_CHECK(names_in(stored).contains("checkpoint_000004"));
  }
  fs::remove_all(run.path() / "train");
  for (const auto& name : names_in(stored)) flip_a_byte(stored / name);
  DOCTEST_CHECK(test::contains(test::thrown_by([&] { CheckpointKeeper{options}; }), "none of them is whole"));
}

DOCTEST_TEST_CASE("a checkpoint that is damaged here stays in storage") {
  TempFolder run, bucket;
  CheckpointKeeper keeper({.directory = run.path() / "train" / "run_001", .storage_path = bucket.path().string()});
  keeper.begin_attempt(1);
  save(keeper, 1, 1, {{"epoch", 1}});
  save(keeper, 1, 2, {{"epoch", 2}});
  keeper.begin_attempt(2);
  const auto stored = bucket.path() / "train" / "run_001";
  for (const auto* name : {"checkpoint_000001", "checkpoint_000002"})
    while (!fs::exists(stored / name / "manifest.json")) std::this_thread::yield();  // brought there behind our back
  flip_a_byte(keeper.folder() / "checkpoint_000002");
  keeper.begin_attempt(3);
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 1}});
  save(keeper, 3, 1, {{"epoch", 3}});
  keeper.close();
  DOCTEST_CHECK(names_in(stored) ==
                std::set<std::string>{"checkpoint_000001", "checkpoint_000002", "checkpoint_000003"});
}

DOCTEST_TEST_CASE("storage that fails is told and stops nothing") {
  TempFolder run, bucket;
  CheckpointKeeper keeper({.directory = run.path() / "train" / "run_001", .storage_path = bucket.path().string()});
  std::ofstream(bucket.path() / "train") << "in the way";
  keeper.begin_attempt(1);
  save(keeper, 1, 1, {{"epoch", 1}});
  keeper.close();
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 1}});
  DOCTEST_CHECK(!keeper.errors().empty());
}

DOCTEST_TEST_CASE("a storage path that cannot be one is refused") {
  TempFolder run;
  const auto text = [&](const std::string& path, CheckpointStrategy strategy = {}) {
    return test::thrown_by(
        [&] { CheckpointKeeper({.directory = run.path(), .strategy = std::move(strategy), .storage_path = path}); });
  };
  DOCTEST_CHECK(test::contains(text("s3:///prefix"), "invalid_option"));
  DOCTEST_CHECK(test::contains(text("/proc/no/such/place"), "io: cannot make the folder"));
  DOCTEST_CHECK(test::contains(text(run.path().string(), {.num_to_keep = 0}), "num_to_keep must not be 0"));
}

DOCTEST_TEST_CASE("a keeper whose run another program has taken over commits nothing more and removes nothing") {
  TempFolder run;
  std::string lost;
  CheckpointKeeper keeper({.directory = run.path(), .why_lost = [&] { return lost; }});
  keeper.begin_attempt(1);
  save(keeper, 1, 1, {{"epoch", 0}});
  lost = "another program has taken over the run";
  const auto over = keeper.add(part(1, 2, {{"epoch", 1}}));
  DOCTEST_REQUIRE(over.size() == 1);
  DOCTEST_CHECK(over[0].fatal == lost);
  DOCTEST_CHECK(test::contains(over[0].result.error, lost));
  DOCTEST_CHECK_FALSE(over[0].result.source);
  DOCTEST_CHECK(keeper.committed() == 1);
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 0}});
  const auto second = keeper.folder() / "checkpoint_000002";
  DOCTEST_CHECK_FALSE(fs::exists(second / "manifest.json"));
  // A folder that is not committed may be the other program's work.
  keeper.begin_attempt(2);
  keeper.close();
  DOCTEST_CHECK(fs::exists(second));
}

DOCTEST_TEST_CASE("the run is asked for right before the commit, when all else is written") {
  TempFolder run;
  std::set<std::string> seen;
  CheckpointKeeper keeper({.directory = run.path(), .why_lost = [&] {
                             if (fs::exists(run.path() / "checkpoints" / "checkpoint_000001"))
                               for (const auto& name : names_in(run.path() / "checkpoints" / "checkpoint_000001"))
                                 seen.insert(fs::path(name).extension());
                             return std::string();
                           }});
  keeper.begin_attempt(1);
  save(keeper, 1, 1, {{"epoch", 0}});
  DOCTEST_CHECK(seen == std::set<std::string>{".bin", ".tmp"});
}

DOCTEST_TEST_CASE("a keeper tells of every commit") {
  TempFolder run;
  std::vector<std::string> commits;
  CheckpointKeeper keeper(
      {.directory = run.path(), .on_commit = [&](std::uint64_t generation, std::uint64_t id, std::int64_t round) {
         commits.push_back(fmt::format("{}: {} after round {}", generation, id, round));
       }});
  keeper.begin_attempt(1);
  save(keeper, 1, 1, {{"epoch", 0}});
  keeper.begin_attempt(2);
  auto second = part(2, 1, {{"epoch", 1}});
  second.iteration = 7;
  keeper.add(std::move(second));
  DOCTEST_CHECK(commits == std::vector<std::string>{"1: 1 after round 1", "2: 2 after round 7"});
}

DOCTEST_TEST_CASE("a save whose rank was lost has failed, and those behind it are committed") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  save(keeper, 1, 1, {{"epoch", 0}});
  DOCTEST_CHECK(keeper.add(part(1, 3, {{"epoch", 2}})).empty());  // of the new rank 0: the old one had begun save 2
  DOCTEST_CHECK(keeper.give_up_parts(2, 0, {0, 2}).empty());      // of another attempt
  const auto over = keeper.give_up_parts(1, 0, {0, 2});
  DOCTEST_REQUIRE(over.size() == 2);
  DOCTEST_CHECK(over[0].result.number == 2);
  DOCTEST_CHECK(test::contains(over[0].result.error, "rank 0: it was lost"));
  DOCTEST_CHECK(over[0].fatal == "");
  DOCTEST_CHECK(over[1].result.number == 3);
  DOCTEST_CHECK(over[1].result.error == "");
  DOCTEST_CHECK(is_plain_answer(keeper.add(part(1, 2, {{"epoch", 1}}))));  // too late
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 2}});
  DOCTEST_CHECK(names_in(keeper.folder()) == std::set<std::string>{"checkpoint_000001", "checkpoint_000003"});
  DOCTEST_CHECK(keeper.errors().size() == 1);
}

DOCTEST_TEST_CASE("a sharded save needs the part of a lost rank unless it has come already") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  // Save 1 has the lost rank's part, save 2 only that of rank 0, and of save 3 nobody has told yet.
  DOCTEST_CHECK(keeper.add(part(1, 1, {{"rank", 1}}, 1, 2)).empty());
  DOCTEST_CHECK(keeper.add(part(1, 2, {{"rank", 0}}, 0, 2)).empty());
  DOCTEST_CHECK(keeper.give_up_parts(1, 1, {0, 3}).empty());
  const auto over = keeper.add(part(1, 1, {{"rank", 0}}, 0, 2));
  DOCTEST_REQUIRE(over.size() == 2);
  DOCTEST_CHECK(over[0].result.error == "");
  DOCTEST_CHECK(test::contains(over[1].result.error, "rank 1: it was lost"));
  const auto third = keeper.add(part(1, 3, {{"rank", 0}}, 0, 2));
  DOCTEST_REQUIRE(third.size() == 1);
  DOCTEST_CHECK(test::contains(third[0].result.error, "rank 1"));
  save(keeper, 1, 4, {{"epoch", 4}});
  DOCTEST_CHECK(keeper.committed() == 2);
}

DOCTEST_TEST_CASE("of a rank that saves too late, only the saves that it has not begun are given up") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  // Rank 0 still writes save 1 and is held before save 2, which rank 1 waits for.
  DOCTEST_CHECK(keeper.give_up_parts(1, 0, {1, 2}).empty());
  const auto over = keeper.add(part(1, 1, {{"epoch", 1}}));
  DOCTEST_REQUIRE(over.size() == 2);
  DOCTEST_CHECK(over[0].result.error == "");
  DOCTEST_CHECK(test::contains(over[1].result.error, "rank 0: it was lost, or lost its group"));
  DOCTEST_CHECK(is_plain_answer(keeper.add(part(1, 2, {{"epoch", 2}}))));
  // What is given up later has nothing to do with that.
  DOCTEST_CHECK(keeper.give_up_parts(1, 0, {3, 4}).empty());
  const auto later = keeper.add(part(1, 3, {{"epoch", 3}}));
  DOCTEST_REQUIRE(later.size() == 2);
  DOCTEST_CHECK(later[0].result.error == "");
  DOCTEST_CHECK_FALSE(later[1].result.error.empty());
  DOCTEST_CHECK(keeper.latest() == Checkpoint{{"epoch", 3}});
}

DOCTEST_TEST_CASE("saves between two that are given up are awaited") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  DOCTEST_CHECK(keeper.give_up_parts(1, 0, {1, 2}).empty());
  DOCTEST_CHECK(keeper.give_up_parts(1, 0, {4, 5}).empty());
  DOCTEST_CHECK(keeper.add(part(1, 1, {{"epoch", 1}})).size() == 2);
  const auto third = keeper.add(part(1, 3, {{"epoch", 3}}));
  DOCTEST_REQUIRE(third.size() == 1);
  DOCTEST_CHECK(third[0].result.error == "");
  const auto fourth = keeper.add(part(1, 4, {{"epoch", 4}}));
  DOCTEST_REQUIRE(fourth.size() == 2);
  DOCTEST_CHECK(fourth[0].result.error == "");
  DOCTEST_CHECK_FALSE(fourth[1].result.error.empty());
}

DOCTEST_TEST_CASE("a save that fails on one rank leaves nothing of the others on disk") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  save(keeper, 1, 1, {{"epoch", 0}});
  const auto folder = keeper.folder() / "checkpoint_000002";
  fs::create_directories(folder);
  std::ofstream(folder / "shard of rank 0") << "large";
  DOCTEST_CHECK(keeper.add(part(1, 2, {{"rank", 0}}, 0, 2)).empty());
  auto bad = part(1, 2, {}, 1, 2);
  bad.error = "no space left";
  DOCTEST_CHECK(test::contains(keeper.add(std::move(bad)).at(0).result.error, "rank 1: no space left"));
  DOCTEST_CHECK(names_in(keeper.folder()) == std::set<std::string>{"checkpoint_000001"});
}

DOCTEST_TEST_CASE("a save of two groups is none, and the next one is whole") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  DOCTEST_CHECK(keeper.add(part(1, 1, {{"rank", 2}}, 2, 3)).empty());  // then a worker was lost
  const auto over = keeper.add(part(1, 1, {{"rank", 0}}, 0, 2));
  DOCTEST_REQUIRE(over.size() == 1);
  DOCTEST_CHECK(test::contains(over[0].result.error, "of two groups"));
  DOCTEST_CHECK(over[0].fatal == "");
  DOCTEST_CHECK(is_plain_answer(keeper.add(part(1, 1, {{"rank", 1}}, 1, 2))));  // too late
  DOCTEST_CHECK(keeper.add(part(1, 2, {{"rank", 0}}, 0, 2)).empty());
  DOCTEST_CHECK(keeper.add(part(1, 2, {{"rank", 1}}, 1, 2)).at(0).result.error == "");
  DOCTEST_CHECK(keeper.latest()->world_size() == 2);
  DOCTEST_CHECK(keeper.errors().size() == 1);
}

DOCTEST_TEST_CASE("a part that came is not lost to the error of who took that rank's place") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  DOCTEST_CHECK(keeper.add(part(1, 1, {{"rank", 1}}, 1, 2)).empty());
  auto again = part(1, 1, {}, 1, 2);
  again.error = "cannot make the file: it exists";
  DOCTEST_CHECK(keeper.add(std::move(again)).empty());
  DOCTEST_CHECK(keeper.add(part(1, 1, {{"rank", 0}}, 0, 2)).at(0).result.error == "");
  DOCTEST_CHECK(keeper.errors().empty());
}

DOCTEST_TEST_CASE("more checkpoints are open at once than a program may have files") {
  const test::EnvironmentGuard in_memory("TMPDIR", fs::exists("/dev/shm") ? "/dev/shm" : nullptr);
  TempFolder run;
  constexpr std::uint64_t count = 300;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  for (std::uint64_t number = 1; number <= count; ++number)
    save(keeper, 1, number, {{"epoch", number}, {"w", TensorData::of<float>({1, static_cast<float>(number)})}});
  const FileCountLimit limit(128);
  const auto best = keeper.best();
  DOCTEST_REQUIRE(best.size() == count);
  keeper.close();
  fs::remove_all(keeper.folder());  // what is open stays readable
  for (std::uint64_t place = 0; place < count; ++place)
    DOCTEST_REQUIRE((best[place].first.to_dict().at<TensorData>("w") ==
                     TensorData::of<float>({1, static_cast<float>(count - place)})));
}

DOCTEST_TEST_CASE("a save of rank 0 alone goes on when another rank is lost") {
  TempFolder run;
  CheckpointKeeper keeper({.directory = run.path()});
  keeper.begin_attempt(1);
  DOCTEST_CHECK(keeper.give_up_parts(1, 1, {0, 1}).empty());
  save(keeper, 1, 1, {{"epoch", 0}});
}

DOCTEST_TEST_CASE("a resumed run that keeps more has them all in one folder") {
  TempFolder run;
  const KeeperOptions options{
      .directory = run.path(),
      .strategy = {.num_to_keep = 1, .checkpoint_score_attribute = "loss", .checkpoint_score_order = "min"}};
  {
    CheckpointKeeper keeper(options);
    keeper.begin_attempt(1);
    save(keeper, 1, 1, {{"loss", 1}});
    save(keeper, 1, 2, {{"loss", 2}});
    keeper.close();
    DOCTEST_CHECK(names_in(run.path()) == std::set<std::string>{"checkpoints", "latest"});
  }
  auto resumed = options;
  resumed.resume = true;
  resumed.strategy.num_to_keep = 2;
  CheckpointKeeper keeper(resumed);
  DOCTEST_CHECK(names_in(run.path()) == std::set<std::string>{"checkpoints"});
  DOCTEST_CHECK(names_in(keeper.folder()) == std::set<std::string>{"checkpoint_000001", "checkpoint_000002"});
  DOCTEST_CHECK(keeper.latest_path() == keeper.folder() / "checkpoint_000002");
  DOCTEST_CHECK(keeper.best().at(1).first == Checkpoint{{"loss", 2}});
}
