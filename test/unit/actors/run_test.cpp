// SPDX-License-Identifier: Apache-2.0
// What happens to a run between its end on the workers and the last round that its consumer looks at.
#include "actors/run.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <troupe/run_iterator.hpp>

#include "actors/protocols.hpp"
#include "actors/system.hpp"
#include "runtime/actor_calls.hpp"
#include "runtime/callback_thread.hpp"
#include "test/unit/temp_folder.hpp"

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

/// What `body` writes to stderr.
template <class Body>
std::string logged_by(Body&& body) {
  const test::TempFolder folder;
  const auto path = folder.path() / "stderr";
  const int file = ::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
  const int saved = ::dup(STDERR_FILENO);
  ::dup2(file, STDERR_FILENO);
  body();
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  ::close(file);
  return test::read_file(path);
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

DOCTEST_TEST_CASE("a run that nobody waits for is concluded when it finishes") {
  detail::RunSpec spec;
  int told = 0;
  spec.on_end = [&](const detail::RunResult&) { told += 1; };
  const auto run = std::make_shared<Run>(std::move(spec));
  run->begin();
  run->conclude_by_itself();
  DOCTEST_CHECK(told == 0);
  run->finish({});
  DOCTEST_CHECK(told == 1);
  run->conclude_by_itself();
  DOCTEST_CHECK(told == 1);
}

DOCTEST_TEST_CASE("an iterator that is dropped says what its run still waits for") {
  for (const bool can_end_at_once : {true, false}) {
    detail::RunSpec spec;
    spec.patience = std::chrono::milliseconds(1);
    spec.can_end_at_once = can_end_at_once;
    const auto run = std::make_shared<Run>(std::move(spec));
    run->begin();
    const auto text = logged_by([&] { const RunIterator dropped(run); });
    DOCTEST_CHECK((text.find("its checkpoints are still being written") != std::string::npos) == can_end_at_once);
    DOCTEST_CHECK((text.find("its function does not stop") != std::string::npos) != can_end_at_once);
  }
}

DOCTEST_TEST_CASE("a run that nobody has begun ends without being carried out") {
  const auto run = std::make_shared<Run>(detail::RunSpec{});
  run->stop(engine::StopReason::failure);
  run->finish_unless_begun(detail::failed_run(ErrorCode::invalid_state, "shut down"));
  DOCTEST_CHECK(run->finished());
  DOCTEST_CHECK(run->begin().has_value());  // who comes later hears of it
  const auto begun = std::make_shared<Run>(detail::RunSpec{});
  begun->begin();
  begun->finish_unless_begun(detail::failed_run(ErrorCode::invalid_state, "shut down"));
  DOCTEST_CHECK_FALSE(begun->finished());
}

DOCTEST_TEST_CASE("a run that has finished keeps no way back, also if that comes later") {
  struct Nothing : detail::RunControl {
    void consumed(std::uint64_t, std::uint32_t) override {}
    void stop(engine::StopReason, std::optional<engine::Failure>) override {}
  };
  const auto run = std::make_shared<Run>(detail::RunSpec{});
  const auto attached = [&] {
    const auto control = std::make_shared<Nothing>();
    run->attach(control);
    return std::weak_ptr<Nothing>(control);
  };
  const auto before = attached();
  DOCTEST_CHECK(!before.expired());
  run->finish({});
  DOCTEST_CHECK(before.expired());
  DOCTEST_CHECK(attached().expired());
}

DOCTEST_TEST_CASE("a run that meets the end of its trainer fails, before it and behind it") {
  caf::actor_system_config config;
  add_to_config(config);
  caf::actor_system system{config};
  const auto trainer = spawn_trainer(system);
  const auto calls = std::make_shared<detail::ActorCallTarget>(std::make_shared<local::GroupView>(1, 1),
                                                               std::make_shared<local::CallQueue>(), nullptr);
  compat::at_end_of(trainer, [calls](const std::string& why) { calls->trainer_ended({ErrorCode::internal, why}); });
  for (int i = 0; i < 2; ++i) {
    const auto run = std::make_shared<Run>(detail::RunSpec{});
    calls->run_begins(run);
    compat::end(trainer);
    DOCTEST_REQUIRE(run->wait_for(std::chrono::seconds(30)));
    DOCTEST_CHECK(run->conclude().outcome.failure->code == ErrorCode::internal);
  }
}
