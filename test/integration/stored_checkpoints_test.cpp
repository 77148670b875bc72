// SPDX-License-Identifier: Apache-2.0
// Runs whose checkpoints are also brought to object storage: real trainers, real S3 servers.
#include <signal.h>

#include <fstream>
#include <future>
#include <set>

#include <troupe/storage.hpp>

#include "test/integration/support.hpp"
#include "test/storage/servers.hpp"

using namespace troupe;
using namespace troupe::test;
namespace fs = std::filesystem;

namespace {

/// Above what a message carries, and above one part of an upload.
Checkpoint state_of(int epoch) {
  return {{"epoch", epoch}, {"weights", TensorData::of(std::vector<float>(3'000'000, static_cast<float>(epoch)))}};
}

/// Epochs 1 to 4. Of all ranks and attempts, the first one that comes to epoch 3 on rank 1 is killed.
void train_four(const Config& config) {
  const auto loaded = train::load_checkpoint();
  for (int epoch = loaded ? loaded->at<int>("epoch") + 1 : 1; epoch <= 4; ++epoch) {
    if (epoch == 3 && train::world_rank() == 1 && config.contains("kill_in") &&
        is_first(config["kill_in"].get<std::string>(), "kill"))
      ::raise(SIGKILL);
    train::report({{"epoch", epoch}}, state_of(epoch));
  }
}

/// "train/run_001/checkpoint_000003" and so on, of what is stored below `location`.
std::set<std::string> stored_in(const std::string& location) {
  const auto base = location.substr(0, location.find('?'));
  std::set<std::string> names;
  for (const auto& stored : list_stored_checkpoints(location))
    names.insert(stored.location.substr(base.size() + 1, stored.location.find('?') - base.size() - 1));
  return names;
}

std::string location_in(const StrictServer& server) {
  return "s3://bucket/runs?endpoint=" + server.endpoint() + "&region=eu-test-1";
}

}  // namespace

DOCTEST_TEST_CASE("a run's checkpoints are in a bucket, those that are kept, and another machine goes on from there") {
  const auto server = MotoServer::start();
  if (!server) return;
  const auto location = server->location("runs");
  {
    TempFolder folder;
    TestTrainer trainer({.num_workers = 2, .logdir = folder.path() / "train", .max_retries = 1});
    trainer->run(
        fn<train_four>,
        {.config = {{"kill_in", folder.path()}}, .checkpoint_strategy = {.num_to_keep = 2}, .storage_path = location});
    DOCTEST_CHECK(trainer->checkpoint_errors().empty());
    DOCTEST_CHECK(trainer->latest_checkpoint()->at<int>("epoch") == 4);
    std::set<std::string> kept;
    for (const auto& entry : fs::directory_iterator(trainer->latest_checkpoint_dir()))
      kept.insert("train/run_001/" + entry.path().filename().string());
    DOCTEST_CHECK(kept.size() == 2);
    DOCTEST_CHECK(stored_in(location) == kept);
  }  // nothing of it is left on this machine

  TempFolder other;
  TestTrainer trainer({.num_workers = 1, .logdir = other.path() / "train"});
  const auto loaded = trainer->run(
      []() -> Checkpoint {
        auto checkpoint = train::load_checkpoint();
        train::save_checkpoint(state_of(5));
        return checkpoint.value_or(Checkpoint());
      },
      {.checkpoint_strategy = {.num_to_keep = 1}, .resume = true, .storage_path = location});
  const auto first = loaded.checkpoint();
  DOCTEST_CHECK(first.at<int>("epoch") == 4);
  DOCTEST_CHECK((first.at<TensorData>("weights") == state_of(4).at<TensorData>("weights")));
  DOCTEST_CHECK(trainer->latest_run_dir() == other.path() / "train" / "run_001");
  const auto next = first.at<int>("_current_checkpoint_id") + 1;
  DOCTEST_CHECK(trainer->latest_checkpoint()->at<int>("_current_checkpoint_id") == next);
  DOCTEST_CHECK(trainer->checkpoint_errors().empty());
  DOCTEST_CHECK(stored_in(location).contains("train/run_001/" + trainer->latest_checkpoint_path().filename().string()));
  // What it went on from is of the same run, and went when it was kept no more.
  DOCTEST_CHECK(stored_in(location).size() == 2);
}

DOCTEST_TEST_CASE("a manifest comes to the bucket after everything it names") {
  StrictServer server;
  TestTrainer trainer({.num_workers = 2, .placement = Placement::thread});
  trainer->run(fn<train_four>, {.storage_path = location_in(server)});
  std::set<std::string> complete;
  for (const std::string request : server.ask({{"ask", "requests"}})) {
    if (!request.starts_with("PUT ") && !request.starts_with("POST ")) continue;
    const auto key = request.substr(0, request.find('?'));
    const auto name = key.substr(key.find("checkpoint_"), std::string("checkpoint_000001").size());
    DOCTEST_CHECK(!complete.contains(name));  // nothing follows the manifest
    if (key.ends_with("/manifest.json")) complete.insert(name);
  }
  DOCTEST_CHECK(complete.size() == 4);
  DOCTEST_CHECK(stored_in(location_in(server)).size() == 4);
  DOCTEST_CHECK(server.ask({{"ask", "uploads"}}) == 0);
}

DOCTEST_TEST_CASE("a store that refuses everything stops no training and is told in the result") {
  StrictServer server;
  server.fault({{"fault", "status"}, {"status", 403}, {"code", "AccessDenied"}, {"method", "POST"}, {"count", 1000}});
  TestTrainer trainer({.num_workers = 2, .placement = Placement::thread});
  auto recorder = std::make_shared<Recorder>();
  trainer->run(fn<train_four>, {.callbacks = {recorder}, .storage_path = location_in(server)});
  DOCTEST_CHECK(recorder->rounds.size() == 4);
  DOCTEST_CHECK(
      (*trainer->latest_checkpoint() == Checkpoint::from_path(trainer->latest_checkpoint_dir() / "checkpoint_000004")));
  const auto errors = trainer->checkpoint_errors();
  DOCTEST_REQUIRE(!errors.empty());
  DOCTEST_CHECK(errors.front().find("AccessDenied") != std::string::npos);
  std::ifstream file(trainer->latest_run_dir() / "run.json");
  DOCTEST_CHECK(Json::parse(file).dump().find("AccessDenied") != std::string::npos);
  DOCTEST_CHECK(stored_in(location_in(server)).empty());
}

DOCTEST_TEST_CASE("training and its checkpoints go on while the store does not answer") {
  StrictServer server;
  server.fault({{"fault", "hold"}, {"method", "POST"}, {"count", 1000}});
  TestTrainer trainer({.num_workers = 2});
  auto callback = std::make_shared<FunctionCallback>();
  int held = -1;
  callback->on_result = [&](const std::vector<Json>& round, const ResultInfo&) {
    // The last epoch: whatever came before did not wait for the store.
    if (round.front()["epoch"] == 4) held = server.ask({{"ask", "release"}});
  };
  trainer->run(fn<train_four>, {.callbacks = {callback}, .storage_path = location_in(server)});
  DOCTEST_CHECK(held <= 1);  // the first upload at most was under way
  DOCTEST_CHECK(held >= 0);
  DOCTEST_CHECK(trainer->checkpoint_errors().empty());
  DOCTEST_CHECK(stored_in(location_in(server)).size() == 4);
}

DOCTEST_TEST_CASE("status and shutdown do not wait for a run whose store does not answer") {
  StrictServer server;
  server.fault({{"fault", "hold"}, {"method", "GET"}, {"count", 1000}});
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  trainer->start();
  auto run = std::async(std::launch::async, [&] {
    return error_of([&] { trainer->run(fn<train_four>, {.resume = true, .storage_path = location_in(server)}); });
  });
  server.ask({{"ask", "held"}});  // the run asks whether there is one to go on with
  DOCTEST_CHECK(trainer->status().state == "idle");
  trainer->shutdown();
  DOCTEST_CHECK(server.ask({{"ask", "release"}}) == 1);
  const auto error = run.get();
  DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
  DOCTEST_CHECK_MESSAGE(error.says("shut down before the run began"), error.text);
  DOCTEST_CHECK(Json::parse(read_file(trainer->latest_run_dir() / "run.json"))["outcome"]["status"] == "failed");
}

DOCTEST_TEST_CASE("what another run has stored in the same place is left alone") {
  StrictServer server;
  const auto run = [&](int epochs) {
    TempFolder folder;
    TestTrainer trainer({.num_workers = 0, .logdir = folder.path() / "train"});
    trainer->run(
        [](const Config& config) {
          for (int epoch = 1; epoch <= config["epochs"]; ++epoch) train::save_checkpoint({{"epoch", epoch}});
        },
        {.config = {{"epochs", epochs}},
         .checkpoint_strategy = {.num_to_keep = 1},
         .storage_path = location_in(server)});
    return trainer->checkpoint_errors();
  };
  DOCTEST_CHECK(run(1).empty());
  const auto errors = run(1);
  DOCTEST_REQUIRE(errors.size() == 1);
  DOCTEST_CHECK(errors.front().find("already") != std::string::npos);
  run(2);  // whether the first one was tried before the second took its place is a matter of time
  DOCTEST_CHECK(stored_in(location_in(server)).contains("train/run_001/checkpoint_000002"));
  DOCTEST_CHECK(stored_in(location_in(server)).contains("train/run_001/checkpoint_000001"));
}
