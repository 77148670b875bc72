// SPDX-License-Identifier: Apache-2.0
#include "test/integration/hosts.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <semaphore>
#include <thread>

#include <fmt/format.h>
#include <troupe/troupe.hpp>

#include "test/integration/steady_training.hpp"
#include "test/integration/support.hpp"
#include "test/support/no_threads.hpp"

namespace troupe::test {
namespace {

using std::chrono::milliseconds;

void report_until_stopped() {
  for (;;) train::report({{"x", 1}});
}

/// Sees the stop, says so, and goes on.
void ignore_stop() {
  train::report({{"x", 1}});
  train::wait_for_stop();
  std::cout << "stopping" << std::endl;
  for (;;) ::pause();
}

/// Says the pids of the whole tree at the first round.
std::shared_ptr<TrainingCallback> say_tree() {
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [first = true](const auto&, const auto&) mutable {
    if (std::exchange(first, false)) say(fmt::format("{}", fmt::join(process_tree(::getpid()), " ")));
  };
  return callback;
}

/// Runs until it is interrupted; the exit code is what a program should have.
int run_interrupted(TrainerOptions options, Fn function, std::shared_ptr<TrainingCallback> callback = say_tree()) {
  TestTrainer trainer(std::move(options));
  try {
    trainer->run(function, {.callbacks = {std::move(callback)}});
  } catch (const Interrupted& interrupted) {
    trainer->shutdown();
    const auto story = Json::parse(read_file(trainer->latest_run_dir() / "run.json"));
    say(fmt::format("{}; {}; processes {}", interrupted.what(), story["outcome"]["status"].get<std::string>(),
                    process_tree(::getpid()).size()));
    return interrupted.exit_code();
  }
  return 1;
}

Placement placement_of(const std::string& name) { return name == "thread" ? Placement::thread : Placement::process; }

int obedient(const std::string& placement) {
  return run_interrupted({.num_workers = 2, .placement = placement_of(placement)}, fn<report_until_stopped>);
}

int stubborn(const std::string& deadline_ms) {
  return run_interrupted({.num_workers = 2, .shutdown_deadline = milliseconds(std::stoi(deadline_ms))},
                         fn<ignore_stop>);
}

/// Threads cannot be killed: the program goes without them.
int stubborn_threads(const std::string&) {
  TestTrainer trainer({.num_workers = 2, .placement = Placement::thread, .shutdown_deadline = std::chrono::minutes(1)});
  try {
    trainer->run(fn<ignore_stop>, {.callbacks = {say_tree()}});
  } catch (const Interrupted& interrupted) {
    ::_exit(interrupted.exit_code());
  }
  return 1;
}

/// A child of the program's own gets a Ctrl-C that is not for the run.
int forking(const std::string&) {
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [](const auto&, const ResultInfo& info) {
    const auto child = ::fork();
    if (child == 0)
      for (;;) ::pause();
    ::kill(child, SIGINT);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (info.round == 1) say(fmt::format("child: signal {}", WTERMSIG(status)));
    info.stop();
  };
  trainer->run(fn<report_until_stopped>, {.callbacks = {callback}});
  say("the run goes on");
  return 0;
}

/// Takes SIGINT over in the middle of a run.
int own_handler(const std::string&) {
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  const auto handler = [](int) {};
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_start = [&](const auto&) { ::signal(SIGINT, handler); };
  trainer->run([] {}, {.callbacks = {callback}});
  say(::signal(SIGINT, SIG_DFL) == +handler ? "its own" : "another");
  say(::signal(SIGTERM, SIG_DFL) == SIG_DFL ? "as before" : "another");
  return 0;
}

/// Starts for the first time when the system has no thread left, and when it has some.
int no_threads(const std::string&) {
  TestTrainer trainer({.num_workers = 1, .placement = Placement::thread});
  try {
    const NoThreads none;
    trainer->start();
  } catch (const Error& error) {
    say(fmt::format("{}: {}", to_string(error.code()), error.what()));
  }
  say(Json(trainer->run([] { return train::world_rank(); })).dump());
  return 0;
}

void run_ranks(Trainer& trainer) {
  say(Json(trainer.run([] { return train::world_rank(); })).dump());
}

/// The body of a child, which ends as programs do, through exit().
template <class Body>
void in_fork(Body&& body) {
  const auto child = ::fork();
  if (child == 0) {
    body();
    std::exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  say(fmt::format("child: exit {}", WIFEXITED(status) ? WEXITSTATUS(status) : -1));
}

/// Forks before it has used troupe, and once more from there.
int forking_first(const std::string&) {
  const auto server = process_tree(::getpid()).at(1);
  in_fork([] {
    in_fork([] {});  // exits and has used nothing
    TestTrainer trainer({.num_workers = 2});
    run_ranks(*trainer);
  });
  int ends[2];
  if (::pipe(ends) != 0) return 1;
  const auto waiting = ::fork();  // holds copies of all descriptors until the program has ended
  if (waiting == 0) {
    ::close(ends[1]);
    ::close(1);
    char byte = 0;
    ::_exit(::read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  TestTrainer trainer({.num_workers = 2});
  run_ranks(*trainer);
  const auto pids = trainer->worker_pids();
  in_fork([] {});
  run_ranks(*trainer);
  say(trainer->worker_pids() == pids ? "the same workers" : "other workers");
  const auto tree = process_tree(::getpid());
  say(std::ranges::count(tree, server) == 1 ? "the same fork server" : "another fork server");
  say(fmt::format("{}", fmt::join(tree, " ")));
  return 0;
}

void say_error(const std::function<void()>& body) {
  try {
    body();
    say("no error");
  } catch (const Error& error) {
    say(fmt::format("{}: {}", to_string(error.code()), error.what()));
  }
}

/// Forks when it has used troupe: that is of no use to the child, and does no harm.
int forking_later(const std::string& placement) {
  const TempFolder folder;
  std::optional<Trainer> trainer;
  trainer.emplace(TrainerOptions{
      .num_workers = placement == "local" ? 0 : 2, .logdir = folder.path(), .placement = placement_of(placement)});
  run_ranks(*trainer);
  std::optional<RunIterator> rounds(trainer->run_iterator(fn<report_until_stopped>));
  in_fork([&] {
    say_error([&] { trainer->start(); });
    say_error([&] { run_ranks(*trainer); });
    say_error([&] { trainer->shutdown(); });
    say_error([&] { rounds->begin(); });
    rounds.reset();
    trainer.reset();
    TestTrainer own({.num_workers = 2, .placement = placement_of(placement)});
    say_error([&] { run_ranks(*own); });
  });
  say(rounds->begin() == rounds->end() ? "the run has ended" : "the run goes on");
  rounds.reset();
  run_ranks(*trainer);
  trainer.reset();
  in_fork([&] {
    TestTrainer own({.num_workers = 2, .placement = placement_of(placement)});
    say_error([&] { run_ranks(*own); });
  });
  return 0;
}

void print_for_ever() {
  for (;;) std::cout << std::string(4096, 'x') << std::endl;
}

/// Its workers print, and nobody reads that.
int blocked_output(const std::string&) {
  TestTrainer trainer({.num_workers = 1, .shutdown_deadline = milliseconds(300)});
  try {
    trainer->run(fn<print_for_ever>);
  } catch (const Interrupted& interrupted) {
    return interrupted.exit_code();
  }
  return 1;
}

int local(const std::string& function) {
  return run_interrupted({.num_workers = 0}, function == "obedient" ? fn<report_until_stopped> : fn<ignore_stop>);
}

std::binary_semaphore has_begun{0};
std::binary_semaphore has_stopped{0};

/// Lets a thread of this program know.
void tell_begin_and_stop() {
  has_begun.release();
  train::wait_for_stop();
  has_stopped.release();
}

/// Runs overlap all the time; each gets two signals.
int overlapping(const std::string&) {
  TestTrainer trainers[2] = {TestTrainer({.num_workers = 1, .placement = Placement::thread}),
                             TestTrainer({.num_workers = 1, .placement = Placement::thread})};
  const auto interrupt = [] {
    has_begun.acquire();
    ::kill(::getpid(), SIGINT);
    has_stopped.acquire();
  };
  const auto end = [](RunIterator& rounds) {
    try {
      rounds.get_final_results(true);
      say("no end");
    } catch (const Interrupted&) {
      say("interrupted");
    }
  };
  std::optional<RunIterator> before;
  for (int i = 0; i < 4; ++i) {
    std::optional<RunIterator> rounds(trainers[i % 2]->run_iterator(fn<tell_begin_and_stop>));
    interrupt();
    if (before) end(*before);
    before = std::move(rounds);
  }
  TestTrainer local({.num_workers = 0});  // its own thread cannot be ended: its second signal would end the program
  auto last = local->run_iterator(fn<tell_begin_and_stop>);
  interrupt();
  end(*before);
  end(last);
  return 0;
}

int iterator(const std::string& placement) {
  TestTrainer trainer({.num_workers = placement == "local" ? 0 : 2, .placement = placement_of(placement)});
  try {
    bool first = true;
    for ([[maybe_unused]] auto& round : trainer->run_iterator(fn<report_until_stopped>))
      if (std::exchange(first, false)) say("running");
  } catch (const Interrupted& interrupted) {
    return interrupted.exit_code();
  }
  return 1;
}

/// Ctrl-C while a callback still starts.
int slow_callback(const std::string& placement) {
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_start = [](const auto&) {
    ::kill(::getpid(), SIGINT);
    // Gives the signal time to be seen before the run begins, where it would be lost; right code needs no time.
    std::this_thread::sleep_for(milliseconds(50));
  };
  return run_interrupted({.num_workers = placement == "local" ? 0 : 2, .placement = placement_of(placement)},
                         fn<report_until_stopped>, callback);
}

/// A callback that never returns, once it has said the pids of the tree.
int stuck_callback(const std::string&) {
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [](const auto&, const auto&) {
    say(fmt::format("{}", fmt::join(process_tree(::getpid()), " ")));
    for (;;) ::pause();
  };
  return run_interrupted({.num_workers = 1}, fn<report_until_stopped>, callback);
}

volatile std::sig_atomic_t own_handler_calls = 0;

void own_handler(int) { own_handler_calls = own_handler_calls + 1; }

/// Signals are the program's own business.
int without_signals(const std::string&) {
  std::signal(SIGINT, own_handler);
  TestTrainer trainer({.num_workers = 1});
  auto callback = std::make_shared<FunctionCallback>();
  bool said = false;
  callback->on_result = [&](const auto&, const ResultInfo& info) {
    if (!std::exchange(said, true)) say("running");
    if (own_handler_calls > 0) info.stop();
  };
  trainer->run(fn<report_until_stopped>, {.callbacks = {callback}});
  say(fmt::format("handled {}", own_handler_calls));
  return 0;
}

int without_init(const std::string&) {
  TempFolder folder;
  Trainer threads({.num_workers = 2, .logdir = folder.path() / "a", .placement = Placement::thread});
  say(Json(threads.run([] { return train::world_rank(); })).dump());
  Trainer local_mode({.num_workers = 0, .logdir = folder.path() / "b"});
  say(Json(local_mode.run([] { return train::world_size(); })).dump());
  Trainer processes({.num_workers = 2, .logdir = folder.path() / "c"});
  try {
    processes.start();
  } catch (const Error& error) {
    say(fmt::format("{}: {}", to_string(error.code()), error.what()));
  }
  return 0;
}

/// Goes on with the run in that folder, and tells how it ended.
int steady(const std::string& folder) {
  Trainer trainer({.num_workers = 2, .logdir = folder + "/results"});
  std::int64_t last = -1;
  bool in_order = true;
  auto order = std::make_shared<FunctionCallback>();
  order->on_result = [&](const auto&, const ResultInfo& info) {
    in_order &= last == -1 || info.round == last + 1;
    last = info.round;
  };
  const auto results =
      trainer.run(fn<train_steadily>, {.config = {{"floats", 10}}, .callbacks = {say_tree(), order}, .resume = true});
  int runs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(trainer.logdir()))
    runs += entry.path().filename().string().starts_with("run_") ? 1 : 0;
  say(Json{{"results", results},
           {"epoch", trainer.status().generation >> 32U},
           {"runs", runs},
           {"rounds_in_order", in_order}}
          .dump());
  return 0;
}

/// Started, and left to the end of the program: statics are destroyed behind the Node.
int static_trainer(const std::string& folder) {
  static Trainer trainer({.num_workers = 2, .logdir = folder + "/results", .shutdown_deadline = milliseconds(500)});
  trainer.run([] { return 1; });
  say(fmt::format("{}", fmt::join(process_tree(::getpid()), " ")));
  return 7;
}

int few_descriptors(const std::string&) {
  const rlimit limit{64, 64};
  ::setrlimit(RLIMIT_NOFILE, &limit);
  TestTrainer trainer({.num_workers = 40});
  const auto took = time_of([&] {
    try {
      trainer->start();
      say("started");
    } catch (const Error& error) {
      say(fmt::format("{}: {}", to_string(error.code()), error.what()));
    }
  });
  say(took < std::chrono::seconds(10) ? "soon" : fmt::format("after {} ms", took.count()));
  TestTrainer small({.num_workers = 2});
  say(Json(small->run([] { return train::world_rank(); })).dump());
  return 0;
}

/// What OpenMP read when the fork server loaded it, and what workers see.
int policies(const std::string& /*argument*/) {
  TestTrainer trainer({.num_workers = 1});
  trainer->start();
  const auto policies = trainer->execute_single([] {
    std::ifstream environment("/proc/" + std::to_string(::getppid()) + "/environ");
    std::string read_when_loaded = "none";
    for (std::string entry; std::getline(environment, entry, '\0');)
      if (entry.starts_with("OMP_WAIT_POLICY=")) read_when_loaded = entry.substr(16);
    const char* seen = std::getenv("OMP_WAIT_POLICY");
    return read_when_loaded + " " + (seen ? seen : "none");
  });
  say(policies);
  return 0;
}

}  // namespace

int play_host(std::string_view name, const std::string& argument) {
  const std::map<std::string_view, int (*)(const std::string&)> hosts = {
      {"obedient", obedient},
      {"stubborn", stubborn},
      {"local", local},
      {"iterator", iterator},
      {"overlapping", overlapping},
      {"stubborn_threads", stubborn_threads},
      {"forking", forking},
      {"forking_first", forking_first},
      {"forking_later", forking_later},
      {"blocked_output", blocked_output},
      {"slow_callback", slow_callback},
      {"stuck_callback", stuck_callback},
      {"without_signals", without_signals},
      {"without_init", without_init},
      {"static_trainer", static_trainer},
      {"few_descriptors", few_descriptors},
      {"steady", steady},
      {"own_handler", own_handler},
      {"policies", policies},
      {"no_threads", no_threads},
  };
  return hosts.at(name)(argument);
}

}  // namespace troupe::test
