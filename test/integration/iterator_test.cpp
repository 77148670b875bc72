// SPDX-License-Identifier: Apache-2.0
// Runs as iterators, on both placements.
#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

Json report_three() {
  for (int i = 0; i < 3; ++i) train::report({{"i", i}, {"rank", train::world_rank()}});
  return train::world_rank() * 10;
}

void report_until_stopped() {
  for (int i = 0;; ++i) train::report({{"i", i}});
}

void throw_after_two() {
  train::report({{"i", 0}});
  train::report({{"i", 1}});
  throw std::runtime_error("the third epoch is cursed");
}

}  // namespace

DOCTEST_TEST_CASE("an iterator gives every round and then the results") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    auto iterator = trainer->run_iterator(fn<report_three>);
    int rounds = 0;
    for (auto& round : iterator) {
      DOCTEST_REQUIRE(round.size() == 2);
      DOCTEST_CHECK(round[0]["i"] == rounds);
      DOCTEST_CHECK(round[1]["rank"] == 1);
      rounds += 1;
    }
    DOCTEST_CHECK(rounds == 3);
    DOCTEST_CHECK(iterator.is_finished());
    DOCTEST_CHECK(Json(iterator.get_returns()).dump() == "[0,10]");
    DOCTEST_CHECK(Json(*iterator.get_final_results()).dump() == "[0,10]");
    DOCTEST_CHECK(iterator.begin() == iterator.end());  // there is nothing left
    DOCTEST_CHECK(trainer->run(fn<report_three>).size() == 2);
  });
}

DOCTEST_TEST_CASE("a run without reports gives no round") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    TrainingIterator iterator = trainer->run_generator([] { return 5; });
    static_assert(std::is_same_v<TrainingIterator, SGDIterator>);
    for (auto& round : iterator) DOCTEST_FAIL_CHECK(round.size());
    DOCTEST_CHECK(Json(iterator.get_returns()).dump() == "[5,5]");
  });
}

DOCTEST_TEST_CASE("before the end there are no results") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    auto iterator = trainer->run_iterator(fn<report_until_stopped>);
    auto round = iterator.begin();
    DOCTEST_CHECK(round->size() == 1);
    DOCTEST_CHECK(!iterator.is_finished());
    DOCTEST_CHECK(!iterator.get_final_results().has_value());
    const auto error = error_of([&] { iterator.get_returns(); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK(error.says("get_final_results(true)"));
    ++round;  // it still runs
    DOCTEST_CHECK(round->at(0)["i"] == 1);
  });
}

DOCTEST_TEST_CASE("get_final_results with force drops the rounds that are left and waits for the results") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    auto iterator = trainer->run_iterator(fn<report_three>);
    iterator.begin();
    DOCTEST_CHECK(!iterator.is_finished());
    const auto results = iterator.get_final_results(true);
    DOCTEST_REQUIRE(results.has_value());
    DOCTEST_CHECK(Json(*results).dump() == "[0,10]");
    DOCTEST_CHECK(iterator.is_finished());
    auto finished = trainer->run_iterator(fn<report_three>);
    auto round = finished.begin();
    ++round;
    ++round;
    ++round;
    DOCTEST_CHECK(Json(*finished.get_final_results(true)).dump() == "[0,10]");
  });
}

DOCTEST_TEST_CASE("leaving the loop early stops the run") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto pids = (trainer->start(), trainer->worker_pids());
    for (auto& round : trainer->run_iterator(fn<report_until_stopped>))
      if (round[0]["i"] == 5) break;
    DOCTEST_CHECK(Json(trainer->run(fn<report_three>)).dump() == "[0,10]");
    DOCTEST_CHECK(trainer->worker_pids() == pids);  // nobody had to be killed
  });
}

DOCTEST_TEST_CASE("an exception of the loop's body stops the run") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto loop = [&] {
      for (auto& round : trainer->run_iterator(fn<report_until_stopped>))
        if (round[0]["i"] == 5) throw std::logic_error("the user's own");
    };
    DOCTEST_CHECK_THROWS_AS(loop(), std::logic_error);
    DOCTEST_CHECK(Json(trainer->run(fn<report_three>)).dump() == "[0,10]");
  });
}

DOCTEST_TEST_CASE("an error of the function is thrown inside the loop after the rounds before it") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    int rounds = 0;
    auto iterator = trainer->run_iterator(fn<throw_after_two>);
    const auto error = error_of([&] {
      for (auto& round : iterator) rounds += static_cast<int>(round.size());
    });
    DOCTEST_CHECK(rounds == 2);
    DOCTEST_CHECK(error.code == ErrorCode::user_code);
    DOCTEST_CHECK(error.says("the third epoch is cursed"));
    DOCTEST_CHECK(error_of([&] { iterator.get_returns(); }).says("the third epoch is cursed"));
  });
}

DOCTEST_TEST_CASE("an iterator can be moved and replaced") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    auto first = trainer->run_iterator(fn<report_three>);
    first.begin();
    auto second = std::move(first);
    DOCTEST_CHECK(second.begin()->at(0)["i"] == 1);
    second = [&] {
      second.get_final_results(true);
      return trainer->run_iterator(fn<report_three>);
    }();
    int rounds = 0;
    for (auto& round : second) rounds += static_cast<int>(round.size());
    DOCTEST_CHECK(rounds == 3);
  });
}

DOCTEST_TEST_CASE("an iterator takes no callbacks") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    const auto error =
        error_of([&] { trainer->run_iterator(fn<report_three>, {.callbacks = {std::make_shared<PrintCallback>()}}); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_option);
    DOCTEST_CHECK(error.says("callbacks"));
  });
}

}  // namespace troupe::test
