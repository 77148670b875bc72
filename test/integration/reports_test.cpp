// SPDX-License-Identifier: Apache-2.0
// Reports on their way to the driver, on both placements.
#include <cmath>
#include <ctime>
#include <limits>
#include <thread>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

void report_epochs(const Config& config) {
  for (int epoch = 0; epoch < config["num_epochs"]; ++epoch)
    train::report({{"epoch", epoch}, {"rank", train::world_rank()}});
}

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;
}

/// The rounds of one run.
std::vector<std::vector<Json>> rounds_of(Trainer& trainer, Fn function, Json config = {}) {
  auto recorder = std::make_shared<Recorder>();
  trainer.run(function, {.config = std::move(config), .callbacks = {recorder}});
  return recorder->rounds;
}

}  // namespace

DOCTEST_TEST_CASE("each round holds the reports of all ranks in rank order") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 3, .placement = placement});
    const auto rounds = rounds_of(*trainer, fn<report_epochs>, {{"num_epochs", 100}});
    DOCTEST_REQUIRE(rounds.size() == 100);
    bool good = true;
    for (std::size_t epoch = 0; epoch < rounds.size(); ++epoch)
      for (std::size_t rank = 0; rank < 3; ++rank)
        good = good && rounds[epoch].at(rank)["epoch"] == epoch && rounds[epoch][rank]["rank"] == rank;
    DOCTEST_CHECK(good);
  });
}

DOCTEST_TEST_CASE("reports carry time and iteration behind the user's keys") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto before = std::time(nullptr);
    const auto rounds = rounds_of(*trainer, fn<report_epochs>, {{"num_epochs", 3}});
    DOCTEST_REQUIRE(rounds.size() == 3);
    for (int i = 0; i < 3; ++i)
      for (const auto& report : rounds[static_cast<std::size_t>(i)]) {
        DOCTEST_CHECK(keys_of(report) == std::vector<std::string>{"epoch", "rank", "_timestamp", "_time_this_iter_s",
                                                                  "_training_iteration"});
        DOCTEST_CHECK(report["_training_iteration"] == i + 1);
        DOCTEST_CHECK(report["_timestamp"] >= before);
        DOCTEST_CHECK(report["_timestamp"] <= std::time(nullptr));
        DOCTEST_CHECK(report["_time_this_iter_s"].is_number_float());
        DOCTEST_CHECK(report["_time_this_iter_s"] >= 0);
      }
    const auto again = rounds_of(*trainer, fn<report_epochs>, {{"num_epochs", 1}});
    DOCTEST_CHECK(again.at(0).at(0)["_training_iteration"] == 1);  // each run counts from 1
  });
}

DOCTEST_TEST_CASE("a user's own value under an autofilled key wins") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    const auto rounds =
        rounds_of(*trainer, [] { train::report({{"_timestamp", "mine"}, {"_training_iteration", -5}}); });
    DOCTEST_CHECK(rounds.at(0).at(0)["_timestamp"] == "mine");
    DOCTEST_CHECK(rounds.at(0).at(0)["_training_iteration"] == -5);
    DOCTEST_CHECK(rounds.at(0).at(0).size() == 3);
  });
}

DOCTEST_TEST_CASE("detailed metrics come under each of the three names of the switch") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start();  // the switch may come later
    for (const auto* name :
         {"TROUPE_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS", "TRAIN_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS",
          "SGD_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS"}) {
      DOCTEST_CAPTURE(name);
      EnvironmentGuard guard(name, "1");
      const auto report = rounds_of(*trainer, fn<report_epochs>, {{"num_epochs", 1}}).at(0).at(1);
      DOCTEST_CHECK(keys_of(report) == std::vector<std::string>{"epoch", "rank", "_timestamp", "_time_this_iter_s",
                                                                "_training_iteration", "_date", "_hostname", "_node_ip",
                                                                "_pid", "_time_total_s"});
      DOCTEST_CHECK(report["_pid"] == trainer->worker_pids()[1]);
      DOCTEST_CHECK(report["_date"].get<std::string>().size() == 19);
      DOCTEST_CHECK(!report["_hostname"].get<std::string>().empty());
      DOCTEST_CHECK(!report["_node_ip"].get<std::string>().empty());
      DOCTEST_CHECK(report["_time_total_s"] >= 0);
    }
    EnvironmentGuard off("TROUPE_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS", "0");
    DOCTEST_CHECK(!rounds_of(*trainer, fn<report_epochs>, {{"num_epochs", 1}}).at(0).at(1).contains("_pid"));
  });
}

DOCTEST_TEST_CASE("NaN and infinity survive in reports and results and configs") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    auto recorder = std::make_shared<Recorder>();
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto result = trainer->run(
        [](const Config& config) {
          train::report({{"nan", std::nan("")}, {"inf", -config["inf"].get<double>()}});
          return std::nan("");
        },
        {.config = {{"inf", infinity}}, .callbacks = {recorder}});
    DOCTEST_CHECK(std::isnan(result.at(0).get<double>()));
    DOCTEST_CHECK(std::isnan(recorder->rounds.at(0).at(0)["nan"].get<double>()));
    DOCTEST_CHECK(recorder->rounds.at(0).at(0)["inf"].get<double>() == -infinity);
  });
}

DOCTEST_TEST_CASE("a null report counts as a round without metrics") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    const auto rounds = rounds_of(*trainer, [] {
      train::report(nullptr);
      train::report({});
      train::report(Json::object());
    });
    DOCTEST_REQUIRE(rounds.size() == 3);
    for (const auto& round : rounds) DOCTEST_CHECK(round.at(0).size() == 3);
  });
}

DOCTEST_TEST_CASE("a report that is no object is refused with a hint") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    const auto array = error_of([&] { trainer->run([] { train::report({1, 2}); }); });
    DOCTEST_CHECK(array.code == ErrorCode::invalid_argument);
    DOCTEST_CHECK(array.rank == 0);
    DOCTEST_CHECK(array.says("braces"));
    DOCTEST_CHECK(array.says("metrics"));
    const auto text = error_of([&] { trainer->run([] { train::report("loss"); }); });
    DOCTEST_CHECK(text.says("metrics of report() must be a JSON object"));
  });
}

DOCTEST_TEST_CASE("a rank that returns with fewer reports is an error with ranks and counts") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto error = error_of([&] {
      trainer->run([] {
        const int reports = train::world_rank() == 0 ? 5 : 3;
        for (int i = 0; i < reports; ++i) train::report({{"i", i}});
      });
    });
    DOCTEST_CHECK(error.code == ErrorCode::unequal_reports);
    // The first report too many ends the run; the one after it may have arrived by then, or not.
    DOCTEST_CHECK((error.says("rank 0: 4") || error.says("rank 0: 5")));
    DOCTEST_CHECK(error.says("rank 1: 3"));
    DOCTEST_CHECK(error.rank == 1);
    const auto only_one = error_of([&] {
      trainer->run([] {
        if (train::world_rank() == 1) train::report({{"i", 1}});
      });
    });
    DOCTEST_CHECK(only_one.code == ErrorCode::unequal_reports);
    DOCTEST_CHECK(rounds_of(*trainer, fn<report_epochs>, {{"num_epochs", 2}}).size() == 2);
  });
}

DOCTEST_TEST_CASE("a rank that waits too long for the reports of others is an error while they run") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement, .report_deadline = std::chrono::milliseconds(200)});
    const auto error = error_of([&] {
      trainer->run([] {
        if (train::world_rank() == 0)
          for (;;) train::report({{"x", 1}});
        train::wait_for_stop();
      });
    });
    DOCTEST_CHECK(error.code == ErrorCode::unequal_reports);
    DOCTEST_CHECK(error.says("rank 1: 0"));
    DOCTEST_CHECK(error.says("report_deadline"));
    DOCTEST_CHECK(error.rank == 1);
  });
}

DOCTEST_TEST_CASE("a consumer that is slower than the report deadline is no error") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement, .report_deadline = std::chrono::seconds(3)});
    auto slow = std::make_shared<FunctionCallback>();
    int rounds = 0;
    slow->on_result = [&](const auto&, const auto&) {
      if (++rounds == 1) std::this_thread::sleep_for(std::chrono::seconds(4));
    };
    trainer->run(fn<report_epochs>, {.config = {{"num_epochs", 3000}}, .callbacks = {slow}});
    DOCTEST_CHECK(rounds == 3000);
  });
}

DOCTEST_TEST_CASE("a second thread of the function reports through a guard") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto rounds = rounds_of(*trainer, [] {
      std::thread([context = train::context()] {
        train::ContextGuard guard(context);
        train::report({{"rank", train::world_rank()}});
      }).join();
      train::report({{"rank", train::world_rank()}});
    });
    DOCTEST_REQUIRE(rounds.size() == 2);
    DOCTEST_CHECK(rounds[0].at(1)["rank"] == 1);
    DOCTEST_CHECK(rounds[1].at(1)["_training_iteration"] == 2);
  });
}

DOCTEST_TEST_CASE("an unbound thread works in a process and is a clear error in a thread rank") {
  constexpr auto function = [] {
    std::string text = "reported";
    std::thread([&] {
      try {
        train::report({{"rank", train::world_rank()}});
      } catch (const Error& error) {
        text = error.what();
      }
    }).join();
    return text;
  };
  TestTrainer processes({.num_workers = 2});
  DOCTEST_CHECK(processes->run(function) == std::vector<Json>(2, "reported"));
  TestTrainer threads({.num_workers = 2, .placement = Placement::thread});
  for (const auto& text : threads->run(function))
    DOCTEST_CHECK(text.get<std::string>().find("train::ContextGuard") != std::string::npos);
}

DOCTEST_TEST_CASE("a thread that outlives its run cannot disturb the next one") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    Fifo gate(trainer.folder() / "gate");
    Fifo done(trainer.folder() / "done");
    trainer->run(
        [](const Config& config) {
          std::thread([context = train::context(), gate = config["gate"].get<std::string>(),
                       done = config["done"].get<std::string>()] {
            train::ContextGuard guard(context);
            wait_for_fifo(gate);
            try {
              train::wait_for_stop();  // returns: nobody will ever stop this run again
              for (int i = 0; i < 2000; ++i) train::report({{"late", i}});  // more than the driver would wait for
            } catch (const Error&) {
            }
            write_fifo(done, "x");
          }).detach();
        },
        {.config = {{"gate", gate.path()}, {"done", done.path()}}});
    auto iterator = trainer->run_iterator(fn<report_epochs>, {.config = {{"num_epochs", 2000}}});
    auto round = iterator.begin();
    write_fifo(gate.path(), "x");
    done.read();
    int rounds = 0;
    for (; round != iterator.end(); ++round, ++rounds) DOCTEST_REQUIRE(!round->at(0).contains("late"));
    DOCTEST_CHECK(rounds == 2000);
  });
}

DOCTEST_TEST_CASE("reports before an exception still reach the callbacks") {
  on_both_placements([](Placement placement) {
    // One rank: with more, the others are stopped wherever they are.
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    auto recorder = std::make_shared<Recorder>();
    error_of([&] {
      trainer->run(
          [] {
            for (int i = 0; i < 10; ++i) train::report({{"i", i}});
            throw std::runtime_error("after the reports");
          },
          {.callbacks = {recorder}});
    });
    DOCTEST_CHECK(recorder->rounds.size() == 10);
    DOCTEST_CHECK(recorder->finishes == std::vector<bool>{true});
  });
}

}  // namespace troupe::test
