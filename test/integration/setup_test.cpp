// SPDX-License-Identifier: Apache-2.0
// What happens on the workers before the first run: initialization hooks and backends.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <thread>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

namespace fs = std::filesystem;

// Hooks take no config; the environment and thread-local state carry what they need.
thread_local int hook_calls = 0;

/// A backend was prepared, and no hook had run then.
thread_local bool prepared_before_hook = false;

void counting_hook() { hook_calls += 1; }
int read_hook_calls() { return hook_calls; }

void throwing_hook() {
  if (train::world_rank() == 1) throw std::runtime_error("no GPU driver");
}

/// Notes its calls in files.
class NotingBackend : public Backend {
public:
  explicit NotingBackend(const Json& options) : folder_(options["folder"].get<std::string>()), options_(options) {}

  void on_setup(const BackendContext& context) override {
    if (options_.value("throw_on_setup", -1) == context.world_rank) throw std::runtime_error("port is taken");
    prepared_before_hook = hook_calls == 0;
  }
  void on_start(const BackendContext& context) override {
    name_ = "rank_" + std::to_string(context.world_rank);
    std::ofstream(folder_ / (name_ + "_start"))
        << Json{context.world_rank,       context.local_rank, context.node_rank,  context.world_size,
                context.local_world_size, context.threads,    context.own_process}
               .dump();
    if (options_.value("throw_on_start", -1) == context.world_rank) throw std::runtime_error("port is taken");
  }
  void on_shutdown() override {
    is_first(folder_, name_ + "_shutdown");
    if (options_.value("throw_on_shutdown", false)) throw std::runtime_error("already closed");
  }

private:
  fs::path folder_;
  Json options_;
  std::string name_;
};

const bool noting_is_registered =
    register_backend("noting", [](const Json& options) { return std::make_unique<NotingBackend>(options); });

/// Says that it is there, and, in a process of its own, never comes to an end; with `until`, a FIFO, not before
/// something is written there.
class LingeringBackend : public Backend {
public:
  explicit LingeringBackend(const Json& options)
      : told_(options["fifo"].get<std::string>()), until_(options.value("until", "")) {}

  void on_setup(const BackendContext& context) override {
    if (context.world_rank == 0) {
      write_fifo(told_, "here");
      if (std::string ignored; !until_.empty()) std::getline(std::ifstream(until_), ignored);
    }
    while (context.own_process) ::pause();
  }
  void on_start(const BackendContext&) override {}

private:
  fs::path told_;
  fs::path until_;
};

const bool lingering_is_registered =
    register_backend("lingering", [](const Json& options) { return std::make_unique<LingeringBackend>(options); });

void report_until_stopped() {
  for (;;) train::report({{"x", 1}});
}

struct NotingConfig {
  std::string folder;
  BackendConfig to_backend_config() const { return {"noting", {{"folder", folder}}}; }
};

}  // namespace

DOCTEST_TEST_CASE("the initialization hook runs once a worker before everything else") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start(fn<counting_hook>);
    DOCTEST_CHECK(trainer->execute([] { return hook_calls; }) == std::vector<int>{1, 1});
    DOCTEST_CHECK(Json(trainer->run(fn<read_hook_calls>)).dump() == "[1,1]");
    DOCTEST_CHECK(Json(trainer->run(fn<read_hook_calls>)).dump() == "[1,1]");
    DOCTEST_CHECK(hook_calls == 0);
  });
}

DOCTEST_TEST_CASE("shutdown on another thread ends a run that is still starting its workers") {
  on_both_placements([](Placement placement) {
    const TempFolder folder;
    const Fifo here(folder.path() / "here");
    TestTrainer trainer(
        {.backend = BackendConfig("lingering", {{"fifo", here.path().string()}}),
         .num_workers = 2,
         .placement = placement,
         // Processes are killed then, threads leave by themselves.
         .shutdown_deadline = placement == Placement::process ? std::chrono::milliseconds(200) : patience});
    auto stopper = std::async(std::launch::async, [&] {
      here.read();
      trainer->shutdown();
    });
    const auto error = error_of([&] { trainer->run(fn<report_until_stopped>); });
    stopper.get();
    DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
    DOCTEST_CHECK_MESSAGE(error.says("shut down"), error.text);
    DOCTEST_CHECK_FALSE(trainer->started());
  });
}

DOCTEST_TEST_CASE("shutdown names a thread rank that hangs while it starts, and another start waits for neither") {
  const TempFolder folder;
  const Fifo here(folder.path() / "here");
  const Fifo until(folder.path() / "until");
  TestTrainer trainer(
      {.backend = BackendConfig("lingering", {{"fifo", here.path().string()}, {"until", until.path().string()}}),
       .num_workers = 2,
       .placement = Placement::thread,
       .shutdown_deadline = std::chrono::milliseconds(100)});
  auto starter = std::async(std::launch::async, [&] { return error_of([&] { trainer->start(); }); });
  here.read();
  const auto second = error_of([&] { trainer->start(); });
  DOCTEST_CHECK(second.code == ErrorCode::invalid_state);
  DOCTEST_CHECK(second.says("being started on another thread"));
  const auto shutdown = error_of([&] { trainer->shutdown(); });
  DOCTEST_CHECK(shutdown.code == ErrorCode::deadline);
  DOCTEST_CHECK(shutdown.says("thread rank 0 did not stop"));
  const auto start = starter.get();
  DOCTEST_CHECK(start.code == ErrorCode::invalid_state);
  DOCTEST_CHECK(start.says("shut down while it started"));
  write_fifo(until.path(), "go on");
}

DOCTEST_TEST_CASE("local mode takes the backend down when the object cannot be made") {
  struct Refusing {
    Refusing() { throw std::runtime_error("no such model"); }
  };
  const TempFolder folder;
  TestTrainer trainer({.backend = BackendConfig("noting", {{"folder", folder.path().string()}}), .num_workers = 0});
  const auto error = error_of([&] { trainer->start<Refusing>(); });
  DOCTEST_CHECK(error.says("no such model"));
  DOCTEST_CHECK(fs::exists(folder.path() / "rank_0_start"));
  DOCTEST_CHECK(fs::exists(folder.path() / "rank_0_shutdown"));
}

DOCTEST_TEST_CASE("a throwing hook fails start with its rank and text") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto error = error_of([&] { trainer->start(fn<throwing_hook>); });
    DOCTEST_CHECK(error.code == ErrorCode::user_code);
    DOCTEST_CHECK(error.rank == 1);
    DOCTEST_CHECK(error.says("rank 1"));
    DOCTEST_CHECK(error.says("no GPU driver"));
    DOCTEST_CHECK(!trainer->started());
    trainer->start();
    DOCTEST_CHECK(trainer->run(fn<read_hook_calls>).size() == 2);
  });
}

DOCTEST_TEST_CASE("a hook that does not end fails start at the deadline and names its rank") {
  TestTrainer trainer({.num_workers = 2, .worker_start_deadline = std::chrono::seconds(5)});
  const auto error = error_of([&] {
    trainer->start([] {
      while (train::world_rank() == 1) ::pause();
    });
  });
  DOCTEST_CHECK(error.code == ErrorCode::deadline);
  DOCTEST_CHECK(error.rank == 1);
  DOCTEST_CHECK(error.says("worker_start_deadline"));
  DOCTEST_CHECK(error.says("initialization hook"));
  trainer->start();
  DOCTEST_CHECK(trainer->run(fn<read_hook_calls>).size() == 2);
}

DOCTEST_TEST_CASE("a worker that dies while it starts is tried again and then given up") {
  TestTrainer trainer({.num_workers = 2});
  EnvironmentGuard folder("TROUPE_TEST_FOLDER", trainer.folder().c_str());
  trainer->start([] {  // once
    if (is_first(std::getenv("TROUPE_TEST_FOLDER"), "died_" + std::to_string(train::world_rank()))) ::raise(SIGKILL);
  });
  DOCTEST_CHECK(trainer->run(fn<read_hook_calls>).size() == 2);
  trainer->shutdown();
  const auto error = error_of([&] {
    trainer->start([] {
      if (train::world_rank() == 1) ::raise(SIGKILL);
    });
  });
  DOCTEST_CHECK(error.code == ErrorCode::start_failed);
  DOCTEST_CHECK(error.rank == 1);
  DOCTEST_CHECK(error.says("SIGKILL"));
}

DOCTEST_TEST_CASE("a replacement whose hook throws ends the run with the hook's text") {
  TestTrainer trainer({.num_workers = 2});
  EnvironmentGuard folder("TROUPE_TEST_FOLDER", trainer.folder().c_str());
  trainer->start([] {
    if (!is_first(std::getenv("TROUPE_TEST_FOLDER"), "hook_" + std::to_string(train::world_rank())))
      throw std::runtime_error("the licence is used up");
  });
  constexpr auto kill_rank_1 = [] {
    if (train::world_rank() == 1) ::raise(SIGKILL);
  };
  const auto error = error_of([&] { trainer->run(kill_rank_1); });
  DOCTEST_CHECK(error.rank == 1);
  DOCTEST_CHECK(error.says("the licence is used up"));
  const auto again = error_of([&] { trainer->run(kill_rank_1); });
  DOCTEST_CHECK(again.says("the licence is used up"));
}

DOCTEST_TEST_CASE("a backend is set up on every worker and taken down at shutdown") {
  on_both_placements([](Placement placement) {
    TempFolder notes;
    const std::vector<BackendConfig> forms = {{"noting", {{"folder", notes.path()}}}, NotingConfig{notes.path()}};
    for (const auto& backend : forms) {
      TestTrainer trainer({.backend = backend,
                           .num_workers = 2,
                           .resources_per_worker = {{"CPU", 3}},
                           .placement = placement,
                           .shutdown_deadline = patience});
      trainer->start();
      DOCTEST_CHECK(read_file(notes.path() / "rank_0_start") ==
                    (placement == Placement::process ? "[0,0,0,2,2,3,true]" : "[0,0,0,2,2,3,false]"));
      DOCTEST_CHECK(read_file(notes.path() / "rank_1_start").starts_with("[1,1,0,2,2,3,"));
      trainer->run([] { return 1; });
      DOCTEST_CHECK(!fs::exists(notes.path() / "rank_0_shutdown"));
      trainer->shutdown();
      for (const auto* name : {"rank_0_shutdown", "rank_1_shutdown"}) DOCTEST_CHECK(fs::remove(notes.path() / name));
    }
  });
}

DOCTEST_TEST_CASE("a backend that throws in on_start or on_setup fails start with its rank and text") {
  on_both_placements([](Placement placement) {
    for (const auto* when : {"throw_on_start", "throw_on_setup"}) {
      TempFolder notes;
      TestTrainer trainer(
          {.backend = {"noting", {{"folder", notes.path()}, {when, 1}}}, .num_workers = 2, .placement = placement});
      const auto error = error_of([&] { trainer->start(); });
      DOCTEST_CHECK(error.rank == 1);
      DOCTEST_CHECK(error.says("port is taken"));
      DOCTEST_CHECK(!trainer->started());
    }
  });
}

DOCTEST_TEST_CASE("a backend is prepared on each worker before the hook runs") {
  on_both_placements([](Placement placement) {
    TempFolder notes;
    TestTrainer trainer({.backend = {"noting", {{"folder", notes.path()}}}, .num_workers = 2, .placement = placement});
    trainer->start(fn<counting_hook>);
    DOCTEST_CHECK(trainer->execute([] { return prepared_before_hook && hook_calls == 1; }) == std::vector{true, true});
  });
}

DOCTEST_TEST_CASE("a backend that throws in on_shutdown does not disturb shutdown") {
  on_both_placements([](Placement placement) {
    TempFolder notes;
    TestTrainer trainer({.backend = {"noting", {{"folder", notes.path()}, {"throw_on_shutdown", true}}},
                         .num_workers = 2,
                         .placement = placement,
                         .shutdown_deadline = patience});
    trainer->start();
    trainer->shutdown();
    DOCTEST_CHECK(fs::exists(notes.path() / "rank_1_shutdown"));
  });
}

DOCTEST_TEST_CASE("an unknown backend is refused with the names there are") {
  TempFolder folder;
  const auto error = error_of([&] { Trainer({.backend = "mpi", .num_workers = 2, .logdir = folder.path()}); });
  DOCTEST_CHECK(error.code == ErrorCode::invalid_option);
  DOCTEST_CHECK(error.says("\"mpi\""));
  DOCTEST_CHECK(error.says("noting"));
}

}  // namespace troupe::test
