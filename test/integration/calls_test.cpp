// SPDX-License-Identifier: Apache-2.0
// Stateful workers: objects and calls, on both placements.
#include <unistd.h>

#include <csignal>
#include <future>
#include <map>
#include <thread>

#include <troupe/cereal.hpp>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

struct Shape {
  std::vector<int> sizes;
  std::map<std::string, double> weights;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(sizes, weights);
  }
};

class Counter {
public:
  explicit Counter(int start = 0, const std::string& name = "none") : value_(start), name_(name) {}
  explicit Counter(const Shape& shape) : value_(static_cast<int>(shape.sizes.size())), name_("shape") {}

  int add(int amount) { return value_ += amount; }
  int value() const { return value_; }
  const std::string& name() const { return name_; }

private:
  int value_;
  std::string name_;
};

void report_until_stopped() {
  for (;;) train::report({{"x", 1}});
}

class Unwilling {
public:
  Unwilling() {
    if (train::world_rank() == 1) throw std::runtime_error("no weights here");
  }
};

class Farewell {
public:
  explicit Farewell(std::string folder) : folder_(std::move(folder)) {}
  ~Farewell() { is_first(folder_, "farewell_" + std::to_string(rank_)); }

private:
  std::string folder_;
  int rank_ = train::world_rank();
};

}  // namespace

DOCTEST_TEST_CASE("objects keep their state between calls") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 3, .placement = placement});
    trainer->start<Counter>(5, "five");  // a literal is sent as the text
    const auto sums = trainer->execute([](Counter& counter, int amount) { return counter.add(amount); }, 2);
    DOCTEST_CHECK(sums == std::vector<int>{7, 7, 7});
    trainer->workers()[1].execute([](Counter& counter) { counter.add(100); });
    DOCTEST_CHECK(trainer->execute([](Counter& counter) { return counter.value(); }) == std::vector<int>{7, 107, 7});
    DOCTEST_CHECK(trainer->execute_single([](Counter& counter) { return counter.name(); }) == "five");
    // A run between the calls does not touch them.
    trainer->run([] { return 1; });
    DOCTEST_CHECK(trainer->workers()[1].execute([](Counter& counter) { return counter.value(); }) == 107);
  });
}

DOCTEST_TEST_CASE("a worker group is indexable and knows its size") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    auto group = trainer->to_worker_group<Counter>(1);
    DOCTEST_CHECK(group.size() == 2);
    DOCTEST_CHECK(group[1].rank() == 1);
    DOCTEST_CHECK(group[1].execute([] { return train::world_rank(); }) == 1);
    for (int rank : {-1, 2, 1000}) {
      const auto error = error_of([&] { static_cast<void>(group[rank]); });
      DOCTEST_CHECK(error.code == ErrorCode::invalid_argument);
      DOCTEST_CHECK(error.says("workers 0 to 1"));
    }
    group.shutdown();
    DOCTEST_CHECK(!trainer->started());
  });
}

DOCTEST_TEST_CASE("arguments and results travel as JSON or in cereal form") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start<Counter>(Shape{{1, 2, 3}, {}});
    DOCTEST_CHECK(trainer->execute_single([](Counter& counter) { return counter.value(); }) == 3);
    const auto shape = trainer->execute_single(
        [](const Shape& given, double factor, const std::string& name) {
          Shape result = given;
          result.sizes.push_back(4);
          result.weights[name] = factor;
          return result;
        },
        Shape{{1}, {{"a", 0.5}}}, 2.5, "b");
    DOCTEST_CHECK(shape.sizes == std::vector<int>{1, 4});
    DOCTEST_CHECK(shape.weights == std::map<std::string, double>{{"a", 0.5}, {"b", 2.5}});
    const auto json = trainer->execute([](const Json& given) { return Json{{"given", given}}; }, Json{{"x", {1, 2}}});
    DOCTEST_CHECK(json.at(1).dump() == R"({"given":{"x":[1,2]}})");
  });
}

DOCTEST_TEST_CASE("calls without an object work on any started trainer") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start();
    DOCTEST_CHECK(trainer->execute([] { return train::world_rank() + 1; }) == std::vector<int>{1, 2});
    const auto error = error_of([&] { trainer->execute_single([](Counter& counter) { return counter.value(); }); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK(error.says("start<Class>"));
    DOCTEST_CHECK(error.rank == 0);
  });
}

DOCTEST_TEST_CASE("a call on an object of another type is refused") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    trainer->start<Counter>(1);
    const auto error = error_of([&] { trainer->execute_single([](std::string& text) { return text; }); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK(error.says("another type"));
  });
}

DOCTEST_TEST_CASE("an exception of one worker keeps its rank and the others finish") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 3, .placement = placement});
    trainer->start<Counter>(0);
    const auto error = error_of([&] {
      trainer->execute([](Counter& counter) {
        counter.add(1);
        if (train::world_rank() == 1) throw std::runtime_error("overflow");
      });
    });
    DOCTEST_CHECK(error.code == ErrorCode::user_code);
    DOCTEST_CHECK(error.rank == 1);
    DOCTEST_CHECK(error.says("rank 1"));
    DOCTEST_CHECK(error.says("overflow"));
    DOCTEST_CHECK(trainer->execute([](Counter& counter) { return counter.value(); }) == std::vector<int>{1, 1, 1});
    const auto strange = error_of([&] { trainer->execute_single([] { throw 3; }); });
    DOCTEST_CHECK(strange.says("not a std::exception"));
  });
}

DOCTEST_TEST_CASE("many calls under way are answered in order") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start<Counter>(0);
    auto worker = trainer->workers()[1];
    std::vector<std::future<int>> pending;
    for (int i = 0; i < 1000; ++i) pending.push_back(worker.submit([](Counter& counter) { return counter.add(1); }));
    bool in_order = true;
    for (int i = 0; i < 1000; ++i) in_order = in_order && pending[static_cast<std::size_t>(i)].get() == i + 1;
    DOCTEST_CHECK(in_order);
  });
}

DOCTEST_TEST_CASE("calls from several threads are all answered") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    auto group = trainer->to_worker_group<Counter>(0);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&group] {
        for (int k = 0; k < 100; ++k) group.execute([](Counter& counter) { counter.add(1); });
      });
    for (auto& thread : threads) thread.join();
    DOCTEST_CHECK(group.execute([](Counter& counter) { return counter.value(); }) == std::vector<int>{400, 400});
  });
}

DOCTEST_TEST_CASE("a callback that would wait for a call on busy workers is told so") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start<Counter>(0);
    std::vector<Thrown> errors;
    std::future<int> kept;
    auto callback = std::make_shared<FunctionCallback>();
    callback->on_start = [&](const auto&) { trainer->execute([](Counter& counter) { counter.add(1); }); };
    callback->on_result = [&](const auto&, const ResultInfo& info) {
      if (info.round > 1) return;
      errors.push_back(error_of([&] { trainer->execute_single([](Counter& counter) { return counter.value(); }); }));
      errors.push_back(error_of([&] { trainer->execute([](Counter& counter) { return counter.value(); }); }));
      kept = trainer->workers()[1].submit([](Counter& counter) { return counter.add(1); });
      errors.push_back(
          error_of([&] { trainer->workers()[0].submit([](Counter& counter) { return counter.value(); }).get(); }));
      info.stop();
    };
    callback->on_finish = [&](bool) { trainer->execute([](Counter& counter) { counter.add(1); }); };
    trainer->run(fn<report_until_stopped>, {.callbacks = {callback}});
    DOCTEST_REQUIRE(errors.size() == 3);
    for (const auto& error : errors) {
      DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
      DOCTEST_CHECK(error.says("wait for each other"));
    }
    DOCTEST_CHECK(kept.get() == 2);
    DOCTEST_CHECK(trainer->execute_single([](Counter& counter) { return counter.value(); }) == 2);
  });
}

DOCTEST_TEST_CASE("a loop over rounds that would wait for a call on busy workers is told so") {
  TestTrainer trainer({.num_workers = 1});
  trainer->start<Counter>(7);
  const auto call = [&] { trainer->execute_single([](Counter& counter) { return counter.value(); }); };
  {
    std::optional<RunIterator> moved(trainer->run_iterator(fn<report_until_stopped>));
    auto& rounds = *moved;
    DOCTEST_CHECK(error_of(call).says("wait for each other"));
    for ([[maybe_unused]] auto& round : rounds) {
      DOCTEST_CHECK(error_of(call).says("wait for each other"));
      break;
    }
  }
  call();
}

DOCTEST_TEST_CASE("a thread that gives its iterator away may wait for calls once the other has taken a round") {
  TestTrainer trainer({.num_workers = 1});
  trainer->start<Counter>(7);
  const auto call = [&] { return trainer->execute_single([](Counter& counter) { return counter.value(); }); };
  std::promise<void> has_round;
  std::future<void> other;
  std::promise<void> may_begin;  // broken before `other` is waited for, if the test fails
  other = std::async(std::launch::async, [&has_round, begin = may_begin.get_future(),
                                          rounds = trainer->run_iterator(fn<report_until_stopped>)]() mutable {
    begin.wait();
    auto round = rounds.begin();
    has_round.set_value();
    for (int i = 0; i < 1000; ++i) ++round;
    const auto dropped = std::move(rounds);  // which stops the run
  });
  const auto error = error_of(call);
  DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
  DOCTEST_CHECK(error.says("no other thread has taken a round yet"));
  may_begin.set_value();
  has_round.get_future().wait();
  DOCTEST_CHECK(call() == 7);
  other.get();
}

DOCTEST_TEST_CASE("report in a call is refused with a reason") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    trainer->start();
    const auto error = error_of([&] { trainer->execute_single([] { train::report({{"x", 1}}); }); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK(error.says("outside a run"));
  });
}

DOCTEST_TEST_CASE("calls before start and after shutdown are refused") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    DOCTEST_CHECK(error_of([&] { trainer->execute([] { return 1; }); }).code == ErrorCode::invalid_state);
    auto group = trainer->to_worker_group<Counter>(0);
    trainer->shutdown();
    const auto error = error_of([&] { group.execute([] { return 1; }); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK(error.says("shut down"));
    group.shutdown();  // nothing is left to do
    trainer->start();
    DOCTEST_CHECK(error_of([&] { group[0].execute([] { return 1; }); }).code == ErrorCode::invalid_state);
    DOCTEST_CHECK(trainer->execute([] { return 1; }).size() == 2);
  });
}

DOCTEST_TEST_CASE("an object that cannot be made fails start with its rank") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto error = error_of([&] { trainer->start<Unwilling>(); });
    DOCTEST_CHECK(error.code == ErrorCode::user_code);
    DOCTEST_CHECK(error.rank == 1);
    DOCTEST_CHECK(error.says("no weights here"));
    DOCTEST_CHECK(!trainer->started());
    trainer->start<Counter>(4);
    DOCTEST_CHECK(trainer->execute_single([](Counter& counter) { return counter.value(); }) == 4);
  });
}

DOCTEST_TEST_CASE("objects are destroyed at shutdown") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement, .shutdown_deadline = patience});
    trainer->start<Farewell>(trainer.folder().string());
    trainer->shutdown();
    DOCTEST_CHECK(std::filesystem::exists(trainer.folder() / "farewell_0"));
    DOCTEST_CHECK(std::filesystem::exists(trainer.folder() / "farewell_1"));
  });
}

DOCTEST_TEST_CASE("a worker that dies in a call is an error of that call and is replaced") {
  TestTrainer trainer({.num_workers = 2});
  trainer->start<Counter>(5);
  const auto error = error_of([&] {
    trainer->execute([](Counter& counter) {
      if (train::world_rank() == 1) ::raise(SIGKILL);
      return counter.add(1);
    });
  });
  DOCTEST_CHECK(error.code == ErrorCode::worker_lost);
  DOCTEST_CHECK(error.rank == 1);
  DOCTEST_CHECK(error.says("SIGKILL"));
  // The survivor keeps its state, the newcomer starts from the arguments of start().
  DOCTEST_CHECK(trainer->execute([](Counter& counter) { return counter.value(); }) == std::vector<int>{6, 5});
}

}  // namespace troupe::test
