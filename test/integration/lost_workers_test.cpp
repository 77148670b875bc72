// SPDX-License-Identifier: Apache-2.0
// Worker processes that die, and what becomes of the run.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "actors/node/node.hpp"
#include "test/integration/support.hpp"
#include "test/support/memory.hpp"
#include "test/support/skip.hpp"

namespace troupe::test {
namespace {

std::filesystem::path folder_of(const Config& config) { return config["folder"].get<std::string>(); }

/// Rank 1 dies in the first attempt, after a report.
Json die_once(const Config& config) {
  train::report({{"x", 1}});
  if (train::world_rank() == 1 && is_first(folder_of(config), "died")) ::raise(SIGKILL);
  train::report({{"x", 2}});
  return train::world_rank();
}

/// Every attempt leaves a line.
Json die_always(const Config& config) {
  if (train::world_rank() != 1) {
    train::wait_for_stop();
    return nullptr;
  }
  std::ofstream(folder_of(config) / "attempts", std::ios::app) << "x";
  for (int line = 1; line <= 30; ++line) std::cout << "line " << line << "\n";
  std::cout.flush();
  ::raise(SIGKILL);
  return nullptr;
}

int overflow_stack(int depth) {
  volatile char page[4096];
  page[0] = static_cast<char>(depth);
  return depth == -1 ? page[0] : overflow_stack(depth + 1) + page[0];
}

void end_badly(const Config& config) {
  if (train::world_rank() != 1) return;
  const auto how = config["how"].get<std::string>();
  if (how == "abort") std::abort();
  if (how == "exit 3") ::_exit(3);
  if (how == "exit 0") std::exit(0);
  if (how == "terminate") std::terminate();
  if (how == "thread") std::thread([] { throw std::runtime_error("nobody catches this"); }).join();
  if (how == "stack") std::cout << overflow_stack(0);
  if (how == "null") *static_cast<volatile int*>(nullptr) = 1;
}

Json rank() { return train::world_rank(); }

}  // namespace

DOCTEST_TEST_CASE("a lost worker costs one retry") {
  TestTrainer trainer({.num_workers = 3});
  trainer->start();
  const auto pids = trainer->worker_pids();
  auto recorder = std::make_shared<Recorder>();
  const auto results = trainer->run(fn<die_once>, {.config = {{"folder", trainer.folder()}}, .callbacks = {recorder}});
  DOCTEST_CHECK(Json(results).dump() == "[0,1,2]");
  DOCTEST_REQUIRE(recorder->infos.size() >= 2);
  DOCTEST_CHECK(recorder->infos.back().attempt == 2);
  DOCTEST_CHECK(recorder->infos.back().round == 2);
  DOCTEST_CHECK(recorder->infos.back().world_size == 3);
  DOCTEST_CHECK(recorder->rounds.back().at(1)["_training_iteration"] == 2);
  DOCTEST_CHECK(recorder->started == 1);
  DOCTEST_CHECK(recorder->finishes == std::vector<bool>{false});
  const auto after = trainer->worker_pids();
  DOCTEST_CHECK(after[0] == pids[0]);  // survivors stay
  DOCTEST_CHECK(after[2] == pids[2]);
  DOCTEST_CHECK(after[1] != pids[1]);
  const auto story = Json::parse(read_file(trainer->latest_run_dir() / "run.json"));
  DOCTEST_CHECK(story["outcome"].dump() == R"({"status":"succeeded","attempts":2})");
  DOCTEST_REQUIRE(story["ranks"].size() == 3);
  for (std::size_t i = 0; i < 3; ++i) DOCTEST_CHECK(story["ranks"][i]["pid"] == after[i]);
  DOCTEST_REQUIRE(story["decisions"].size() == 1);
  const auto& decision = story["decisions"][0];
  DOCTEST_CHECK(decision["attempt"] == 1);
  DOCTEST_CHECK(decision["cause"] == "lost worker");
  DOCTEST_CHECK(decision["rank"] == 1);
  DOCTEST_CHECK(decision["decision"] == "restart 1 of 3");
  DOCTEST_CHECK(decision["delay_ms"] == 0);
}

DOCTEST_TEST_CASE("an iterator goes on after a lost worker") {
  TestTrainer trainer({.num_workers = 2});
  auto iterator = trainer->run_iterator(fn<die_once>, {.config = {{"folder", trainer.folder()}}});
  int last = 0;
  for (auto& round : iterator) last = round.at(1)["x"].get<int>();
  DOCTEST_CHECK(last == 2);
  DOCTEST_CHECK(Json(iterator.get_returns()).dump() == "[0,1]");
}

DOCTEST_TEST_CASE("without retries the error shows rank and signal and last output") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 0});
  auto recorder = std::make_shared<Recorder>();
  const auto error = error_of(
      [&] { trainer->run(fn<die_always>, {.config = {{"folder", trainer.folder()}}, .callbacks = {recorder}}); });
  DOCTEST_CHECK(error.training_failed);
  DOCTEST_CHECK(error.code == ErrorCode::worker_lost);
  DOCTEST_CHECK(error.rank == 1);
  DOCTEST_CHECK(error.says("rank 1"));
  DOCTEST_CHECK(error.says("killed by SIGKILL (out of memory?)"));
  DOCTEST_CHECK(error.says("max_retries = 0"));
  DOCTEST_CHECK(!error.says("line 10\n"));
  for (int line = 11; line <= 30; ++line) DOCTEST_CHECK(error.says("line " + std::to_string(line)));
  DOCTEST_CHECK(recorder->finishes == std::vector<bool>{true});
  DOCTEST_CHECK(read_file(trainer.folder() / "attempts") == "x");
  DOCTEST_CHECK(Json(trainer->run(fn<rank>)).dump() == "[0,1]");
}

DOCTEST_TEST_CASE("the last output in an error is that of the attempt that failed") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 1, .retry_user_errors = true});
  const auto say = [](const Config& config) {
    if (train::world_rank() != 1) return;
    const bool first = is_first(folder_of(config), "attempt_of_" + config["word"].get<std::string>());
    std::cout << config["word"].get<std::string>() << (first ? " one" : " two") << std::endl;
    if (config["throws"].get<bool>()) throw std::runtime_error("the end");
  };
  const auto config = [&](const char* word, bool throws) {
    return RunOptions{.config = {{"folder", trainer.folder()}, {"word", word}, {"throws", throws}}};
  };
  trainer->run(say, config("earlier", false));
  const auto error = error_of([&] { trainer->run(say, config("now", true)); });
  DOCTEST_CHECK(error.says("now two"));
  DOCTEST_CHECK_FALSE(error.says("now one"));
  DOCTEST_CHECK_FALSE(error.says("earlier"));
}

DOCTEST_TEST_CASE("run.json shows the workers of the attempt that failed") {
  TestTrainer trainer({.num_workers = 2, .max_retries = 1});
  trainer->start();
  error_of([&] {
    trainer->run(
        [](const Config& config) {
          std::ofstream(folder_of(config) / fmt::format("pid_{}", train::world_rank())) << ::getpid();
          if (train::world_rank() == 1) ::raise(SIGKILL);
          train::wait_for_stop();
        },
        {.config = {{"folder", trainer.folder()}}});
  });
  const auto story = Json::parse(read_file(trainer->latest_run_dir() / "run.json"));
  DOCTEST_CHECK(story["outcome"]["attempts"] == 2);
  for (int i : {0, 1})
    DOCTEST_CHECK(story["ranks"][i]["pid"].dump() == read_file(trainer.folder() / fmt::format("pid_{}", i)));
}

DOCTEST_TEST_CASE("N retries are N restarts") {
  for (int retries : {1, 3}) {
    TestTrainer trainer({.num_workers = 2, .max_retries = retries});
    const auto error = error_of([&] { trainer->run(fn<die_always>, {.config = {{"folder", trainer.folder()}}}); });
    DOCTEST_CHECK(error.code == ErrorCode::worker_lost);
    DOCTEST_CHECK(error.says("max_retries = " + std::to_string(retries)));
    DOCTEST_CHECK(read_file(trainer.folder() / "attempts").size() == static_cast<std::size_t>(retries) + 1);
    std::filesystem::remove(trainer.folder() / "attempts");
    error_of([&] { trainer->run(fn<die_always>, {.config = {{"folder", trainer.folder()}}}); });
    DOCTEST_CHECK(read_file(trainer.folder() / "attempts").size() == static_cast<std::size_t>(retries) + 1);
  }
}

DOCTEST_TEST_CASE("a crash loop is ended by the restart window") {
  TestTrainer trainer({.num_workers = 2, .max_retries = -1});
  const auto error = error_of([&] { trainer->run(fn<die_always>, {.config = {{"folder", trainer.folder()}}}); });
  DOCTEST_CHECK(error.code == ErrorCode::worker_lost);
  DOCTEST_CHECK(error.says("crash loop: 5 restarts within 60 s"));
  DOCTEST_CHECK(read_file(trainer.folder() / "attempts").size() == 6);
}

DOCTEST_TEST_CASE("without a limit of retries a run that makes progress goes on") {
  TestTrainer trainer({.num_workers = 2, .max_retries = -1});
  const auto results = trainer->run(
      [](const Config& config) {
        int deaths = 0;
        while (std::filesystem::exists(folder_of(config) / ("death_" + std::to_string(deaths)))) ++deaths;
        // Each attempt comes one round further.
        for (int i = 0; i <= deaths; ++i) train::report({{"x", i}});
        if (train::world_rank() == 1 && deaths < 8) {
          // Only after the round is complete at the driver.
          wait_for_fifo(folder_of(config) / "round");
          is_first(folder_of(config), "death_" + std::to_string(deaths));
          ::raise(SIGKILL);
        }
        return "alive";
      },
      {.config = {{"folder", (Fifo(trainer.folder() / "round"), trainer.folder())}},
       .callbacks = {[&] {
         auto callback = std::make_shared<FunctionCallback>();
         callback->on_result = [&](const auto&, const ResultInfo& info) {
           if (info.attempt <= 8 && info.round == info.attempt) write_fifo(trainer.folder() / "round", "x");
         };
         return callback;
       }()}});
  DOCTEST_CHECK(results == std::vector<Json>(2, "alive"));
}

DOCTEST_TEST_CASE("user errors are retried only when asked") {
  constexpr auto throw_once = [](const Config& config) {
    if (train::world_rank() == 1 && is_first(folder_of(config), "threw")) throw std::runtime_error("flaky");
    return "fine";
  };
  for (auto placement : {Placement::process, Placement::thread}) {
    TestTrainer strict({.num_workers = 2, .placement = placement});
    DOCTEST_CHECK(error_of([&] { strict->run(throw_once, {.config = {{"folder", strict.folder()}}}); }).says("flaky"));
    TestTrainer patient({.num_workers = 2, .placement = placement, .retry_user_errors = true});
    DOCTEST_CHECK(patient->run(throw_once, {.config = {{"folder", patient.folder()}}}) == std::vector<Json>(2, "fine"));
    const auto error = error_of([&] { patient->run([] { throw std::runtime_error("always"); }); });
    DOCTEST_CHECK(error.code == ErrorCode::user_code);
    DOCTEST_CHECK(error.says("attempt 2"));
    DOCTEST_CHECK(error.says("the same exception as before at the same place"));
  }
}

DOCTEST_TEST_CASE("every bad end of a worker is told exactly") {
  // Sanitizers may catch the signal of a bad access, tell of it and exit.
  const std::string bad_access = std::getenv("TROUPE_SANITIZED") ? "" : "killed by SIGSEGV";
  const std::vector<std::pair<std::string, std::string>> ends = {
      {"abort", "killed by SIGABRT"},
      {"exit 3", "exited with status 3"},
      {"exit 0", "exited with status 0"},
      {"terminate", "killed by SIGABRT"},
      {"thread", "killed by SIGABRT"},
      {"stack", bad_access},
      {"null", bad_access},
  };
  TestTrainer trainer({.num_workers = 2, .max_retries = 0});
  for (const auto& [how, text] : ends) {
    DOCTEST_CAPTURE(how);
    const auto error = error_of([&] { trainer->run(fn<end_badly>, {.config = {{"how", how}}}); });
    DOCTEST_CHECK(error.code == ErrorCode::worker_lost);
    DOCTEST_CHECK(error.rank == 1);
    DOCTEST_CHECK_MESSAGE(error.says(text), error.text);
    if (how == "thread") DOCTEST_CHECK(error.says("nobody catches this"));
  }
  DOCTEST_CHECK(Json(trainer->run(fn<rank>)).dump() == "[0,1]");
}

DOCTEST_TEST_CASE("a run that another program has taken over ends with that reason") {
  TestTrainer trainer({.num_workers = 2});
  const auto error = error_of([&] {
    trainer->run(
        [](const Config& config) {
          if (train::world_rank() == 0)
            for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_of(config)))
              if (entry.path().filename() == "journal") std::ofstream(entry.path(), std::ios::app) << "of another\n";
          train::save_checkpoint({{"x", 1}});
          train::wait_for_stop();
        },
        {.config = {{"folder", trainer.folder()}}});
  });
  DOCTEST_CHECK(error.code == ErrorCode::invalid_state);
  DOCTEST_CHECK_MESSAGE(error.says("another program has taken over the run"), error.text);
}

DOCTEST_TEST_CASE("a worker of two gigabytes is replaced while its memory is being freed") {
  if (megabytes_free() < 4096) return skip("less than 4 GB of memory are free");
  bool was_early = false;
  for (int i = 0; i < 5 && !was_early; ++i) {  // the machine may be too busy for the replacement once
    TestTrainer trainer({.num_workers = 2, .max_retries = 1, .spares = 1});
    std::optional<ProcessWatch> victim;
    auto callback = std::make_shared<FunctionCallback>();
    callback->on_result = [&](const std::vector<Json>& results, const ResultInfo& info) {
      const auto pid = results.at(1).at("pid").get<pid_t>();
      if (info.attempt == 2) {
        was_early = !victim->ends_within(std::chrono::milliseconds(0));
        return;
      }
      victim.emplace(pid);
      ::kill(pid, SIGKILL);
    };
    const auto results = trainer->run(
        [](const Config& config) {
          const bool dies = train::world_rank() == 1 && is_first(folder_of(config), "died");
          if (dies) use_memory(2048);
          train::report({{"pid", ::getpid()}});
          if (dies) train::wait_for_stop();
          return train::world_rank();
        },
        {.config = {{"folder", trainer.folder()}}, .callbacks = {callback}});
    DOCTEST_CHECK(Json(results).dump() == "[0,1]");
    const auto decisions = Json::parse(read_file(trainer->latest_run_dir() / "run.json"))["decisions"];
    DOCTEST_REQUIRE(decisions.size() == 1);
    DOCTEST_CHECK(decisions[0]["rank"] == 1);
    DOCTEST_CHECK(decisions[0]["error"] == "killed by SIGKILL (out of memory?)");
    // Nothing is left behind, also of the one that is still on its way out.
    trainer->shutdown();
    DOCTEST_CHECK(victim->ends_within(std::chrono::milliseconds(0)));
    DOCTEST_CHECK(process_tree(::getpid()).size() == 2);
  }
  DOCTEST_CHECK(was_early);
}

DOCTEST_TEST_CASE("the death of an idle worker is no failure of the next run") {
  TestTrainer trainer({.num_workers = 2});
  trainer->start();
  const auto victim = trainer->worker_pids()[1];
  ProcessWatch watch(victim);
  ::kill(victim, SIGKILL);
  DOCTEST_CHECK(watch.ends_within(patience));
  DOCTEST_CHECK(Json(trainer->run(fn<rank>)).dump() == "[0,1]");
  DOCTEST_CHECK(trainer->worker_pids()[1] != victim);
}

DOCTEST_TEST_CASE("idle workers that die with the fork server are replaced before the next run") {
  TestTrainer trainer({.num_workers = 8});
  trainer->start();
  std::vector<ProcessWatch> workers;
  for (auto pid : trainer->worker_pids()) workers.emplace_back(pid);
  ::kill(node::Node::instance().fork_server_pid(), SIGKILL);
  for (const auto& worker : workers) DOCTEST_REQUIRE(worker.ends_within(patience));
  // A call fails until the loss is known, and waits for the replacement afterwards.
  std::vector<int> ranks;
  for (const auto end = std::chrono::steady_clock::now() + patience;
       ranks.empty() && std::chrono::steady_clock::now() < end;) {
    try {
      ranks = trainer->execute([] { return train::world_rank(); });
    } catch (const Error& error) {
      DOCTEST_REQUIRE(error.code() == ErrorCode::worker_lost);
    }
  }
  DOCTEST_CHECK(ranks == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
}

namespace {

/// Worker processes, spares included.
std::set<int> processes() {
  std::set<int> pids;
  for (int pid : process_tree(::getpid()))
    if (pid != ::getpid() && pid != node::Node::instance().fork_server_pid()) pids.insert(pid);
  return pids;
}

/// So many, beside one that has ended and may still be seen.
bool come_to_be(std::size_t count, int ended = -1) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < end) {
    auto pids = processes();
    pids.erase(ended);
    if (pids.size() == count) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace

DOCTEST_TEST_CASE("a spare that an idle worker's loss has used up is replaced, and so are spares that die or stop") {
  TestTrainer trainer({.num_workers = 1, .spares = 2});
  trainer->start();
  DOCTEST_REQUIRE(come_to_be(3));
  const auto worker = trainer->worker_pids().at(0);
  for (int victim : processes()) {
    DOCTEST_CAPTURE(victim == worker);
    const ProcessWatch watch(victim);
    ::kill(victim, victim == worker ? SIGKILL : SIGSTOP);
    DOCTEST_CHECK(watch.ends_within(patience));
    DOCTEST_CHECK(come_to_be(3, victim));
  }
  DOCTEST_CHECK(Json(trainer->run(fn<rank>)).dump() == "[0]");
}

DOCTEST_TEST_CASE("spares that die together with the workers are not taken for workers that cannot be started") {
  TestTrainer trainer({.num_workers = 2, .spares = 3});
  trainer->start();
  for (int time = 0; time < 2; ++time) {
    DOCTEST_REQUIRE(come_to_be(5));
    const auto server = node::Node::instance().fork_server_pid();
    DOCTEST_REQUIRE(server > 0);
    ::kill(server, SIGKILL);
    DOCTEST_CHECK(Json(trainer->run(fn<rank>)).dump() == "[0,1]");
  }
}

DOCTEST_TEST_CASE("a fork server that is stopped before it forks is replaced") {
  TestTrainer first({.num_workers = 1});
  first->start();
  const auto stopped = node::Node::instance().fork_server_pid();
  ::kill(stopped, SIGSTOP);
  {
    TestTrainer trainer({.num_workers = 2, .worker_start_deadline = std::chrono::milliseconds(200)});
    const auto error = error_of([&] { trainer->start(); });
    DOCTEST_CHECK_MESSAGE(error.code == ErrorCode::deadline, error.text);
  }
  TestTrainer later({.num_workers = 2});
  DOCTEST_CHECK(Json(later->run([] { return train::world_rank(); })).dump() == "[0,1]");
  DOCTEST_CHECK(node::Node::instance().fork_server_pid() != stopped);
  DOCTEST_CHECK(Json(first->run([] { return train::world_rank(); })).dump() == "[0]");
}

DOCTEST_TEST_CASE("the loss of the fork server is recovered in a run and between runs") {
  TestTrainer trainer({.num_workers = 2});
  trainer->start();
  const auto first = node::Node::instance().fork_server_pid();
  DOCTEST_REQUIRE(first > 0);
  auto killer = std::make_shared<FunctionCallback>();
  std::vector<int> attempts;
  killer->on_result = [&](const auto&, const ResultInfo& info) {
    if (attempts.empty()) ::kill(first, SIGKILL);
    attempts.push_back(info.attempt);
  };
  const auto results = trainer->run(
      [](const Config& config) {
        // The first attempt waits for its death, which the report brings about.
        const bool first_attempt = is_first(folder_of(config), "waited_" + std::to_string(train::world_rank()));
        train::report({{"x", 1}});
        while (first_attempt) ::pause();
        return train::world_rank();
      },
      {.config = {{"folder", trainer.folder()}}, .callbacks = {killer}});
  DOCTEST_CHECK(Json(results).dump() == "[0,1]");
  DOCTEST_CHECK(attempts.back() == 2);
  const auto second = node::Node::instance().fork_server_pid();
  DOCTEST_CHECK(second > 0);
  DOCTEST_CHECK(second != first);
  ProcessWatch watch(second);
  ::kill(second, SIGKILL);
  DOCTEST_CHECK(watch.ends_within(patience));
  DOCTEST_CHECK(Json(trainer->run(fn<rank>)).dump() == "[0,1]");
  trainer->shutdown();
  DOCTEST_CHECK(process_tree(::getpid()).size() == 2);  // this program and the fork server
}

}  // namespace troupe::test
