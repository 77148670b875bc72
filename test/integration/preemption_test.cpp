// SPDX-License-Identifier: Apache-2.0
// Workers that are taken away with notice.
#include <unistd.h>

#include <csignal>
#include <thread>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

using std::chrono::milliseconds;

/// Counts to a hundred, in the first attempt not further than the notice. On a notice all save what they have and wait
/// for the end, or return.
Json count_with_notice(const Config& config) {
  int count = 0;
  int attempts = 1;
  if (auto checkpoint = train::load_checkpoint()) {
    count = checkpoint->at<int>("count");
    attempts = checkpoint->at<int>("attempts") + 1;
  }
  while (count < 100) {
    train::wait_for_stop(milliseconds(1));
    ++count;
    train::report({{"count", count}});
    auto notice = train::preemption_notice();
    while (!notice && attempts == 1 && count == 99 && !train::wait_for_stop(milliseconds(1)))
      notice = train::preemption_notice();
    if (notice) {
      train::save_checkpoint({{"count", count}, {"attempts", attempts}, {"rank", notice->rank}});
      train::flush_checkpoints();
      if (config["returns"].get<bool>()) return "left";
      train::wait_for_stop();
    }
  }
  return {{"count", count}, {"attempts", attempts}};
}

struct Preempting {
  explicit Preempting(TestTrainer& trainer, std::function<void()> how) {
    callback->on_result = [this, &trainer, how](const auto&, const ResultInfo& info) {
      if (info.attempt == 1 && info.round == 10) {
        before = trainer->worker_pids();
        how();
      }
    };
  }
  std::shared_ptr<FunctionCallback> callback = std::make_shared<FunctionCallback>();
  std::vector<int> before;
};

void check_replaced(TestTrainer& trainer, const std::vector<Json>& results, const std::vector<int>& before) {
  for (const auto& result : results) {
    DOCTEST_CHECK(result["count"] == 100);
    DOCTEST_CHECK(result["attempts"] == 2);
  }
  const auto after = trainer->worker_pids();
  DOCTEST_CHECK(after.at(0) == before.at(0));
  DOCTEST_CHECK(after.at(1) != before.at(1));
  DOCTEST_CHECK(trainer->status().restarts.preemptions == 1);
  DOCTEST_CHECK(trainer->status().restarts.lost_workers == 0);
  const auto story = Json::parse(read_file(trainer->latest_run_dir() / "run.json"));
  DOCTEST_REQUIRE(story["decisions"].size() == 1);
  DOCTEST_CHECK(story["decisions"][0]["cause"] == "preemption");
  DOCTEST_CHECK(story["decisions"][0]["rank"] == 1);
  DOCTEST_CHECK(trainer->latest_checkpoint()->at<int>("rank") == 1);
}

}  // namespace

DOCTEST_TEST_CASE("SIGTERM to a worker is a notice to all and a replacement that costs no retry") {
  for (bool returns : {true, false}) {
    DOCTEST_CAPTURE(returns);
    const milliseconds grace(returns ? 20'000 : 5000);
    TestTrainer trainer({.num_workers = 2, .max_retries = 0, .preemption_grace = grace});
    Preempting preempting(trainer, [&] { ::kill(trainer->worker_pids().at(1), SIGTERM); });
    const auto results =
        trainer->run(fn<count_with_notice>, {.config = {{"returns", returns}}, .callbacks = {preempting.callback}});
    check_replaced(trainer, results, preempting.before);
  }
}

DOCTEST_TEST_CASE("preempt() gives notice too and takes the worker at its deadline") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 0});
  Preempting preempting(trainer, [&] { trainer->preempt(1, milliseconds(5000)); });
  const auto results =
      trainer->run(fn<count_with_notice>, {.config = {{"returns", false}}, .callbacks = {preempting.callback}});
  check_replaced(trainer, results, preempting.before);
}

DOCTEST_TEST_CASE("threads are preempted by running the function again") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 0, .placement = Placement::thread});
  Preempting preempting(trainer, [&] { trainer->preempt(1, milliseconds(20'000)); });
  const auto results =
      trainer->run(fn<count_with_notice>, {.config = {{"returns", true}}, .callbacks = {preempting.callback}});
  for (const auto& result : results) DOCTEST_CHECK(result["attempts"] == 2);
  DOCTEST_CHECK(trainer->status().restarts.preemptions == 1);
}

DOCTEST_TEST_CASE("an idle worker that gets SIGTERM is replaced") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 0});
  trainer->start();
  const auto victim = trainer->worker_pids().at(1);
  const ProcessWatch watch(victim);
  ::kill(victim, SIGTERM);
  DOCTEST_CHECK(watch.ends_within(patience));
  DOCTEST_CHECK(Json(trainer->run([] { return train::world_rank(); })).dump() == "[0,1]");
  DOCTEST_CHECK(trainer->worker_pids().at(1) != victim);
}

DOCTEST_TEST_CASE("SIGTERM costs no retry, however short before a run or after its begin it comes") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 0, .preemption_grace = milliseconds(100)});
  trainer->start();
  for (int delay = 0; delay < 10; ++delay) {
    const auto victim = trainer->worker_pids().at(1);
    if (victim > 0) ::kill(victim, SIGTERM);
    for (int run = 0; run < delay; ++run) std::this_thread::yield();
    DOCTEST_CHECK(Json(trainer->run([] { return train::world_rank(); })).dump() == "[0,1]");
  }
  DOCTEST_CHECK(trainer->status().restarts.lost_workers == 0);
}

DOCTEST_TEST_CASE("shutdown ends a function that looks at nothing soon, notice or not") {
  TestTrainer trainer({.num_workers = 1, .shutdown_deadline = milliseconds(400)});
  auto rounds = trainer->run_iterator([] {
    train::report({{"x", 1}});
    for (;;) ::pause();
  });
  DOCTEST_REQUIRE((rounds.begin() != rounds.end()));
  const ProcessWatch watch(trainer->worker_pids().at(0));
  const auto took = time_of([&] { trainer->shutdown(); });
  DOCTEST_CHECK(watch.ends_within(patience));
  DOCTEST_CHECK(took < std::chrono::seconds(5));
}

DOCTEST_TEST_CASE("preempt() of a rank that is not there is refused") {
  TestTrainer trainer({.num_workers = 2, .placement = Placement::thread});
  DOCTEST_CHECK(error_of([&] { trainer->preempt(0); }).code == ErrorCode::invalid_state);
  trainer->start();
  DOCTEST_CHECK(error_of([&] { trainer->preempt(2); }).says("0 to 1"));
  DOCTEST_CHECK(error_of([&] { trainer->preempt(-1); }).code == ErrorCode::invalid_argument);
  TestTrainer local({.num_workers = 0});
  local->start();
  DOCTEST_CHECK(error_of([&] { local->preempt(0); }).says("local mode"));
  DOCTEST_CHECK(error_of([] { train::preemption_notice(); }).code == ErrorCode::not_in_worker);
}

}  // namespace troupe::test
