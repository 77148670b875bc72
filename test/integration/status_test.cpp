// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include "runtime/session/session.hpp"
#include "test/integration/support.hpp"

namespace troupe::test {

DOCTEST_TEST_CASE("the status follows a trainer from its start to its end") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    DOCTEST_CHECK(trainer->status().state == "not started");
    trainer->start();
    auto status = trainer->status();
    DOCTEST_CHECK(status.state == "idle");
    DOCTEST_CHECK(status.world_size == 2);
    DOCTEST_CHECK(status.attempt == 0);
    DOCTEST_REQUIRE(status.workers.size() == 2);
    DOCTEST_CHECK(status.workers[1].state == "ready");
    DOCTEST_CHECK(status.workers[1].pid == trainer->worker_pids()[1]);

    auto callback = std::make_shared<FunctionCallback>();
    std::vector<TrainerStatus> seen;
    callback->on_result = [&](const auto&, const ResultInfo& info) {
      if (info.round == 3) seen.push_back(trainer->status());
    };
    trainer->run(
        [] {
          for (int i = 0; i < 3; ++i) train::report({{"i", i}});
        },
        {.callbacks = {callback}});
    DOCTEST_REQUIRE(seen.size() == 1);
    DOCTEST_CHECK(seen[0].attempt == 1);
    DOCTEST_CHECK(seen[0].round == 3);
    DOCTEST_CHECK((seen[0].generation >> 32U) == 1);
    DOCTEST_CHECK(seen[0].workers.at(0).round == 3);
    DOCTEST_CHECK(seen[0].workers.at(1).round == 3);
    status = trainer->status();
    DOCTEST_CHECK(status.state == "idle");
    DOCTEST_CHECK(status.attempt == 1);
    std::ostringstream out;
    out << status;
    DOCTEST_CHECK(out.str() == status.to_string());
    DOCTEST_CHECK(fmt::format("{}", status) == status.to_string());
    DOCTEST_CHECK(status.to_string().starts_with("idle, 2 workers, attempt 1, round 3, generation 1."));
    trainer->shutdown();
    DOCTEST_CHECK(trainer->status().state == "not started");
  });
}

DOCTEST_TEST_CASE("the status has the last step of functions that count theirs") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    auto callback = std::make_shared<FunctionCallback>();
    TrainerStatus seen;
    callback->on_result = [&](const auto&, const ResultInfo& info) {
      if (info.round == 3) seen = trainer->status();
    };
    constexpr auto steps = [](const Config& config) {
      for (int i = 0; i < 3; ++i) {
        if (config["counts"]) detail::Session::require("test")->step_committed(10 + i);
        train::report({{"i", i}});
      }
    };
    trainer->run(steps, {.config = {{"counts", true}}, .callbacks = {callback}});
    for (const auto& worker : seen.workers) {
      DOCTEST_CHECK(worker.step == 12);
      DOCTEST_CHECK(worker.slowdown == 0);
    }
    DOCTEST_CHECK_MESSAGE(seen.to_string().find("round  step\n") != std::string::npos, seen.to_string());
    trainer->run(steps, {.config = {{"counts", false}}, .callbacks = {callback}});
    for (const auto& worker : seen.workers) DOCTEST_CHECK(worker.step == -1);
    DOCTEST_CHECK(seen.to_string().find("step") == std::string::npos);
  });
}

DOCTEST_TEST_CASE("the status counts restarts by cause and shows the attempt that runs") {
  TestTrainer trainer({.num_workers = 2});
  auto callback = std::make_shared<FunctionCallback>();
  TrainerStatus first;
  TrainerStatus last;
  callback->on_result = [&](const auto&, const ResultInfo& info) {
    (info.attempt == 1 ? first : last) = trainer->status();
    if (info.attempt == 1) ::kill(first.workers.at(1).pid, SIGKILL);
  };
  trainer->run(
      [](const Config& config) {
        const bool first_attempt =
            is_first(config["folder"].get<std::string>(), "waited_" + std::to_string(train::world_rank()));
        train::report({{"x", 1}});
        if (first_attempt) train::wait_for_stop();
      },
      {.config = {{"folder", trainer.folder()}}, .callbacks = {callback}});
  DOCTEST_CHECK(first.restarts.lost_workers == 0);
  DOCTEST_CHECK(first.state == "running");
  DOCTEST_CHECK(first.workers.at(1).state == "running");
  DOCTEST_CHECK(last.attempt == 2);
  DOCTEST_CHECK(last.restarts.lost_workers == 1);
  DOCTEST_CHECK(last.generation > first.generation);
  DOCTEST_CHECK(last.workers.at(1).pid != first.workers.at(1).pid);
}

DOCTEST_TEST_CASE("the status may be asked for from any thread at any time") {
  TestTrainer trainer({.num_workers = 2});
  std::atomic<bool> done{false};
  std::atomic<int> asked{0};
  std::thread reader([&] {
    while (!done) asked += trainer->status().to_string().empty() ? 0 : 1;
  });
  for (int i = 0; i < 3; ++i) trainer->run([] { train::report({{"x", 1}}); });
  trainer->shutdown();
  done = true;
  reader.join();
  DOCTEST_CHECK(asked > 0);
}

DOCTEST_TEST_CASE("local mode has a status too") {
  TestTrainer trainer({.num_workers = 0});
  auto callback = std::make_shared<FunctionCallback>();
  TrainerStatus seen;
  callback->on_result = [&](const auto&, const auto&) { seen = trainer->status(); };
  trainer->run([] { train::report({{"x", 1}}); }, {.callbacks = {callback}});
  DOCTEST_CHECK(seen.attempt == 1);
  DOCTEST_REQUIRE(seen.workers.size() == 1);
  DOCTEST_CHECK(seen.workers[0].pid == ::getpid());
}

}  // namespace troupe::test
