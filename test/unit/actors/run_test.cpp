// SPDX-License-Identifier: Apache-2.0
// What happens to a run between its end on the workers and the last round that its consumer looks at.
#include "actors/run.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/callback_thread.hpp"

using namespace troupe;
using detail::Run;

namespace {

/// Three rounds wait, and the workers have returned.
std::shared_ptr<Run> finished_run() {
  auto run = std::make_shared<Run>(detail::RunSpec{});
  std::vector<detail::Round> rounds;
  for (int number = 1; number <= 3; ++number) rounds.push_back({1, 1, number, {detail::pack(Json{{"i", number}})}});
  run->add_rounds(std::move(rounds));
  run->begin();
  run->finish({});
  return run;
}

int rounds_left(Run& run) {
  std::vector<Json> results;
  ResultInfo info;
  int count = 0;
  while (run.next_round(results, info)) ++count;
  return count;
}

struct Throwing : TrainingCallback {
  void handle_result(const std::vector<Json>&, const ResultInfo& info) override {
    if (info.round == 3) throw std::runtime_error("disk full");
  }
};

}  // namespace

DOCTEST_TEST_CASE("a callback that throws after the functions have returned ends the run with its text") {
  const auto run = finished_run();
  CallbackThread thread({std::make_shared<Throwing>()}, run, {});
  thread.join();
  const auto& outcome = run->conclude().outcome;
  DOCTEST_CHECK(outcome.status == engine::RunStatus::failed);
  DOCTEST_REQUIRE(outcome.failure);
  DOCTEST_CHECK(outcome.failure->text.find("disk full") != std::string::npos);
}

DOCTEST_TEST_CASE("a report that cannot be read fails the run and not the program") {
  const auto run = std::make_shared<Run>(detail::RunSpec{});
  run->add_rounds({{1, 1, 1, {std::string(1, '\xc1')}}});
  run->begin();
  run->finish({});
  CallbackThread thread({}, run, {});
  thread.join();
  const auto& outcome = run->conclude().outcome;
  DOCTEST_CHECK(outcome.status == engine::RunStatus::failed);
  DOCTEST_REQUIRE(outcome.failure);
  DOCTEST_CHECK(outcome.failure->text.find("cannot be shown") != std::string::npos);
}

DOCTEST_TEST_CASE("an interrupt counts as long as rounds wait, and they are still shown") {
  const auto run = finished_run();
  run->stop(engine::StopReason::interrupted);
  DOCTEST_CHECK(rounds_left(*run) == 3);
  DOCTEST_CHECK(run->conclude().outcome.status == engine::RunStatus::interrupted);
}

DOCTEST_TEST_CASE("a second interrupt drops the rounds that wait") {
  const auto run = finished_run();
  std::vector<Json> results;
  ResultInfo info;
  DOCTEST_CHECK(run->next_round(results, info));
  run->stop(engine::StopReason::interrupted);
  run->stop(engine::StopReason::interrupted);
  DOCTEST_CHECK(rounds_left(*run) == 0);
  DOCTEST_CHECK(run->conclude().outcome.status == engine::RunStatus::interrupted);
}

DOCTEST_TEST_CASE("a run that was concluded stays what it was") {
  const auto run = finished_run();
  DOCTEST_CHECK(run->conclude().outcome.status == engine::RunStatus::succeeded);
  run->stop(engine::StopReason::interrupted);
  DOCTEST_CHECK(run->conclude().outcome.status == engine::RunStatus::succeeded);
}
