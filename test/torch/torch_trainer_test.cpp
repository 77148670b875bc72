// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <torch/version.h>
#include <unistd.h>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include <cstdlib>

#include "test/integration/support.hpp"

namespace train = troupe::train;
using namespace troupe::test;
using troupe::Json;
using troupe::TorchTrainer;

namespace {

int report_epochs(const troupe::Config& config) {
  train::torch::barrier();  // there is a group
  for (int epoch = 0; epoch < config["num_epochs"]; ++epoch)
    train::report({{"epoch", epoch}, {"rank", train::world_rank()}});
  return train::world_rank();
}

/// Reports once; the first attempt ends as the config says.
void fail_once(const troupe::Config& config) {
  train::report({{"loss", 0.5}});
  if (train::world_rank() != 1 || !is_first(config["folder"].get<std::string>(), "failed")) return;
  if (config["how"] == "kill") ::kill(::getpid(), SIGKILL);
  throw std::runtime_error("bad batch");
}

troupe::TorchTrainerOptions options_in(const TempFolder& folder, Json config, int max_failures = 0) {
  return {
      .train_loop_config = std::move(config),
      .torch_config = {.timeout_s = 20},
      .scaling_config = {.num_workers = 2},
      .run_config = {
          .name = "mine", .storage_path = folder.path().string(), .failure_config = {.max_failures = max_failures}}};
}

}  // namespace

DOCTEST_TEST_CASE("fit gives the last metrics of rank 0, what the function returned, and the folder of the run") {
  TempFolder folder;
  auto recorder = std::make_shared<Recorder>();
  on_both_placements([&](troupe::Placement placement) {
    auto options = options_in(folder, {{"num_epochs", 3}});
    options.scaling_config.placement = placement;
    options.run_config.callbacks = {recorder};
    TorchTrainer trainer(troupe::fn<report_epochs>, options);
    const auto result = trainer.fit();
    DOCTEST_CHECK(result.metrics["epoch"] == 2);
    DOCTEST_CHECK(result.metrics["rank"] == 0);
    DOCTEST_CHECK(result.metrics["_training_iteration"] == 3);
    DOCTEST_CHECK(Json(result.returns) == Json({0, 1}));
    DOCTEST_CHECK(!result.error);
    DOCTEST_CHECK(trainer.logdir() == folder.path() / "mine");
    DOCTEST_CHECK(result.path.parent_path() == folder.path() / "mine");
    const auto story = Json::parse(read_file(result.path / "run.json"));
    DOCTEST_CHECK(story["versions"]["libtorch"] == TORCH_VERSION);
    const auto again = trainer.fit();
    DOCTEST_CHECK(again.metrics["epoch"] == 2);
    DOCTEST_CHECK(again.path != result.path);
  });
  DOCTEST_CHECK(recorder->started == 4);
  DOCTEST_CHECK(recorder->rounds.size() == 12);
}

DOCTEST_TEST_CASE("fit works in local mode, with a lambda, and without reports") {
  TempFolder folder;
  TorchTrainer trainer([] { return train::world_size(); },
                       {.scaling_config = {.num_workers = 0}, .run_config = {.storage_path = folder.path().string()}});
  const auto result = trainer.fit();
  DOCTEST_CHECK(result.metrics == Json::object());
  DOCTEST_CHECK(Json(result.returns) == Json({1}));
  DOCTEST_CHECK(trainer.logdir().parent_path() == folder.path());
  DOCTEST_CHECK(trainer.logdir().filename().string().starts_with("train_"));
}

DOCTEST_TEST_CASE("fit throws what went wrong, or keeps it in the result beside the last metrics") {
  for (std::string how : {"throw", "kill"}) {
    DOCTEST_CAPTURE(how);
    TempFolder folder;
    const Json config{{"how", how}, {"folder", folder.path().string()}};
    TorchTrainer trainer(troupe::fn<fail_once>, options_in(folder, config));
    const auto error = error_of([&] { trainer.fit(); });
    DOCTEST_CHECK(error.rank == 1);
    DOCTEST_CHECK(error.training_failed);
    DOCTEST_CHECK(trainer.fit().metrics["loss"] == 0.5);  // it fails once

    std::filesystem::remove(folder.path() / "failed");
    const auto result = trainer.fit(std::nothrow);
    DOCTEST_REQUIRE(result.error);
    DOCTEST_CHECK(result.error->rank() == 1);
    DOCTEST_CHECK(std::string(result.error->what()) == error.text);
    DOCTEST_CHECK(result.error->code() == error.code);
    DOCTEST_CHECK(std::filesystem::exists(result.path / "run.json"));
    DOCTEST_CHECK(result.returns.empty());
  }
}

DOCTEST_TEST_CASE("a Result has the latest and the best checkpoints, after a failure too") {
  const auto save_scores = [](const troupe::Config& config) {
    int first = 0;
    if (const auto checkpoint = train::load_checkpoint()) first = checkpoint->at<int>("epoch") + 1;
    for (int epoch = first; epoch < config["num_epochs"]; ++epoch)
      train::report({{"loss", std::abs(epoch - 2)}}, {{"epoch", epoch}});
    train::flush_checkpoints();
    if (config.contains("fail")) throw std::runtime_error("bad batch");
    return first;
  };
  TempFolder folder;
  auto options = options_in(folder, {{"num_epochs", 5}});
  options.run_config.checkpoint_config = {2, "loss", "min"};
  const auto result = TorchTrainer(save_scores, options).fit();
  DOCTEST_REQUIRE(result.checkpoint);
  DOCTEST_CHECK(result.checkpoint->at<int>("epoch") == 4);
  DOCTEST_REQUIRE(result.best_checkpoints.size() == 2);
  DOCTEST_CHECK(result.best_checkpoints[0].first.at<int>("epoch") == 2);
  DOCTEST_CHECK(result.best_checkpoints[0].second["loss"] == 0);

  options.train_loop_config = {{"num_epochs", 7}, {"fail", true}};
  options.resume_from_checkpoint = result.checkpoint;
  const auto failed = TorchTrainer(save_scores, options).fit(std::nothrow);
  DOCTEST_CHECK(failed.error);
  DOCTEST_REQUIRE(failed.checkpoint);
  DOCTEST_CHECK(failed.checkpoint->at<int>("epoch") == 6);

  options.train_loop_config = {{"num_epochs", 0}};
  const auto idle = TorchTrainer(save_scores, options).fit();
  DOCTEST_CHECK(Json(idle.returns) == Json({5, 5}));
  DOCTEST_REQUIRE(idle.checkpoint);
  DOCTEST_CHECK(idle.checkpoint->at<int>("epoch") == 4);  // the one it was given
  DOCTEST_CHECK(idle.best_checkpoints.empty());
}

DOCTEST_TEST_CASE("max_failures counts lost workers and exceptions, each") {
  for (std::string how : {"throw", "kill"}) {
    DOCTEST_CAPTURE(how);
    TempFolder folder;
    const Json config{{"how", how}, {"folder", folder.path().string()}};
    TorchTrainer trainer(troupe::fn<fail_once>, options_in(folder, config, 1));
    const auto result = trainer.fit();
    DOCTEST_CHECK(result.metrics["loss"] == 0.5);
    DOCTEST_CHECK(!result.error);
  }
}

DOCTEST_TEST_CASE("a TorchTrainer takes a range of workers") {
  TempFolder folder;
  auto options = options_in(folder, {{"num_epochs", 1}});
  options.scaling_config.num_workers = {1, 3};
  options.scaling_config.resources_per_worker = {{"CPU", 0.25}};
  options.run_config.failure_config.spares = 1;
  const auto result = TorchTrainer(troupe::fn<report_epochs>, options).fit();
  DOCTEST_CHECK(Json(result.returns) == Json({0, 1, 2}));
}

DOCTEST_TEST_CASE("a TorchTrainer that resumes goes on with the run of its name") {
  const auto count_up = [](const troupe::Config& config) {
    int count = 0;
    if (const auto checkpoint = train::load_checkpoint()) count = checkpoint->at<int>("count");
    const int first = count;
    while (count < config["until"]) {
      count += 1;
      train::report({{"count", count}}, {{"count", count}});
    }
    train::flush_checkpoints();
    if (config.contains("fail")) throw std::runtime_error("bad batch");
    return first;
  };
  TempFolder folder;
  auto options = options_in(folder, {{"until", 3}, {"fail", true}});
  options.run_config.resume = true;  // there is nothing yet
  const auto first = TorchTrainer(count_up, options).fit(std::nothrow);
  DOCTEST_CHECK(first.error);
  DOCTEST_CHECK(first.path == folder.path() / "mine" / "run_001");

  options.train_loop_config = {{"until", 5}};
  TorchTrainer restarted(count_up, options);
  const auto second = restarted.fit();
  DOCTEST_CHECK(second.path == first.path);
  DOCTEST_CHECK(Json(second.returns) == Json({3, 3}));
  DOCTEST_CHECK(second.metrics["count"] == 5);
  DOCTEST_CHECK(second.metrics["_training_iteration"] == 5);
  const auto third = restarted.fit();
  DOCTEST_CHECK(third.path == first.path);
  DOCTEST_CHECK(Json(third.returns) == Json({5, 5}));
  DOCTEST_REQUIRE(third.checkpoint);
  DOCTEST_CHECK(third.checkpoint->at<int>("count") == 5);

  options.run_config.resume = false;
  const auto fresh = TorchTrainer(count_up, options).fit();
  DOCTEST_CHECK(fresh.path == folder.path() / "mine" / "run_002");
  DOCTEST_CHECK(Json(fresh.returns) == Json({0, 0}));
}

DOCTEST_TEST_CASE("FailureConfig says when a run that keeps failing is given up") {
  TempFolder folder;
  auto options = options_in(folder, Json::object(), -1);
  options.run_config.failure_config.retry_policy.crash_loop_restarts = 2;
  TorchTrainer trainer([] { ::kill(::getpid(), SIGKILL); }, options);
  DOCTEST_CHECK(error_of([&] { trainer.fit(); }).says("crash loop"));

  options.run_config.failure_config.progress_deadline = std::chrono::milliseconds(300);
  options.run_config.failure_config.max_failures = 0;
  TorchTrainer hangs(
      [] {
        for (;;) ::pause();
      },
      options);
  DOCTEST_CHECK(error_of([&] { hangs.fit(); }).training_failed);
}

DOCTEST_TEST_CASE("bad options of a TorchTrainer are refused in its constructor, and leave no folder") {
  TempFolder folder;
  const auto refused = [&](auto&& change, const char* part, troupe::Fn function = troupe::fn<report_epochs>) {
    auto options = options_in(folder, {{"num_epochs", 1}});
    change(options);
    const auto error = error_of([&] { TorchTrainer trainer(function, options); });
    DOCTEST_CHECK_MESSAGE(error.says(part), error.text);
  };
  using Options = troupe::TorchTrainerOptions;
  refused([](Options& options) { options.scaling_config.num_workers = -1; }, "num_workers");
  refused([](Options& options) { options.scaling_config.resources_per_worker = {{"GPU", 1}}; }, "use_gpu");
  refused([](Options& options) { options.run_config.failure_config.max_failures = -2; }, "max_failures = -2");
  refused([](Options& options) { options.run_config.failure_config.spares = -1; }, "spares");
  refused(
      [](Options& options) {
        options.run_config.name.clear();
        options.run_config.resume = true;
      },
      "RunConfig.name");
  refused([](Options& options) { options.scaling_config.num_workers = {3, 2}; }, "num_workers");
  refused([](Options& options) { options.run_config.name = "../x"; }, "storage_path");
  refused([](Options& options) { options.run_config.name = ".."; }, "storage_path");
  refused([](Options& options) { options.train_loop_config = 3; }, "train_loop_config");
  refused([](Options& options) { options.run_config.checkpoint_config.num_to_keep = -1; }, "num_to_keep = -1");
  refused([](Options& options) { options.run_config.checkpoint_config.checkpoint_score_order = "up"; }, "\"min\"");
  refused([](Options& options) { options.torch_config.init_method = "file"; }, "\"env\", \"tcp\"");
  refused([](Options&) {}, "troupe::fn<train_func>", {});
  refused(
      [](Options& options) {
        options.run_config.name.clear();
        options.scaling_config.num_workers = 5000;
      },
      "4096");
  refused(
      [](Options& options) {
        options.run_config.name.clear();
        options.torch_config.timeout_s = 0;
      },
      "timeout_s = 0.0");
  DOCTEST_CHECK(std::filesystem::is_empty(folder.path()));
}
