// SPDX-License-Identifier: Apache-2.0
// Whole host programs seen from outside: killed, interrupted, without init, short of descriptors.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "test/integration/support.hpp"
#include "test/support/skip.hpp"

namespace troupe::test {
namespace {

using std::chrono::milliseconds;

/// All processes of the tree, from the line that a host says.
std::vector<ProcessWatch> watch_tree(const std::string& line) {
  std::vector<ProcessWatch> watches;
  std::istringstream in(line);
  for (pid_t pid = 0; in >> pid;) watches.emplace_back(pid);
  return watches;
}

void check_gone(const std::vector<ProcessWatch>& tree, std::size_t size) {
  DOCTEST_CHECK(tree.size() == size);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (const auto& process : tree)
    DOCTEST_CHECK(process.ends_within(std::chrono::duration_cast<milliseconds>(
        std::max(deadline - std::chrono::steady_clock::now(), std::chrono::steady_clock::duration::zero()))));
}

/// A host that is killed cannot remove its files: they go with `folder`.
std::vector<std::string> temporary_files_in(const TempFolder& folder) { return {"TMPDIR=" + folder.path().string()}; }

/// GCC 12's ASan holds locks of its own in its allocator, and looks for leaks in stacks that the child has not.
constexpr const char* no_forks_of_threads =
    "ASan waits for ever, or tells of false leaks, in forks of programs with threads";

void skip_to(Program& program, const std::string& part) {
  for (;;) {
    const auto line = program.read_line();
    DOCTEST_REQUIRE(!line.empty());
    if (line.find(part) != std::string::npos) return;
  }
}

}  // namespace

DOCTEST_TEST_CASE("a host that is killed leaves no process behind, a second later") {
  const TempFolder folder;
  auto fastest = milliseconds::max();
  for (int i = 0; i < 3 && fastest >= std::chrono::seconds(1); ++i) {  // the machine may be busy once or twice
    Program host("stubborn", "60000", temporary_files_in(folder));
    const auto tree = watch_tree(host.read_line());
    host.signal(SIGKILL);
    fastest = std::min(fastest, time_of([&] { check_gone(tree, 4); }));
    DOCTEST_CHECK(host.wait_text() == "signal 9");
  }
  DOCTEST_CHECK(fastest < std::chrono::seconds(1));
}

DOCTEST_TEST_CASE("Ctrl-C ends a run in good order with exit code 130") {
  for (const auto* placement : {"process", "thread"}) {
    DOCTEST_CAPTURE(placement);
    const bool processes = std::string(placement) == "process";
    Program host("obedient", placement);
    const auto tree = watch_tree(host.read_line());
    host.signal(SIGINT);
    DOCTEST_CHECK(host.read_line() == "the run was ended by Ctrl-C; interrupted; processes 2");
    DOCTEST_CHECK(host.wait_text() == "exit 130");
    check_gone(tree, processes ? 4 : 2);
  }
}

DOCTEST_TEST_CASE("SIGTERM ends a run in good order with exit code 143") {
  Program host("obedient", "process");
  const auto tree = watch_tree(host.read_line());
  host.signal(SIGTERM);
  DOCTEST_CHECK(host.read_line() == "the run was ended by SIGTERM; interrupted; processes 2");
  DOCTEST_CHECK(host.wait_text() == "exit 143");
  check_gone(tree, 4);
}

DOCTEST_TEST_CASE("Ctrl-C ends a function that never returns within the shutdown deadline") {
  Program host("stubborn", "300");
  const auto tree = watch_tree(host.read_line());
  host.signal(SIGINT);
  const auto took = time_of([&] { DOCTEST_CHECK(host.wait_text() == "exit 130"); });
  DOCTEST_CHECK(took >= milliseconds(300));
  DOCTEST_CHECK(took < milliseconds(5000));
  check_gone(tree, 4);
}

DOCTEST_TEST_CASE("a second Ctrl-C ends a function that never returns at once") {
  Program host("stubborn", "60000");
  const auto tree = watch_tree(host.read_line());
  host.signal(SIGINT);
  skip_to(host, "stopping");
  host.signal(SIGINT);
  // Without the second one: after a minute.
  DOCTEST_CHECK(time_of([&] { DOCTEST_CHECK(host.wait_text() == "exit 130"); }) < std::chrono::seconds(30));
  check_gone(tree, 4);
}

DOCTEST_TEST_CASE("a signal handler that a program installs during a run stays") {
  Program host("own_handler");
  DOCTEST_CHECK(host.read_line() == "its own");
  DOCTEST_CHECK(host.read_line() == "as before");
  DOCTEST_CHECK(host.wait_text() == "exit 0");
}

DOCTEST_TEST_CASE("a first start without a thread left is an error, and no end of the program") {
  Program host("no_threads");
  const auto refused = host.read_line();
  DOCTEST_CHECK_MESSAGE(refused.starts_with("start_failed: "), refused);
  DOCTEST_CHECK(refused.find("ulimit -u") != std::string::npos);
  DOCTEST_CHECK(host.read_line() == "[0]");
  DOCTEST_CHECK(host.wait_text() == "exit 0");
}

DOCTEST_TEST_CASE("Ctrl-C ends local mode as well") {
  Program obedient("local", "obedient");
  const auto tree = watch_tree(obedient.read_line());
  obedient.signal(SIGINT);
  DOCTEST_CHECK(obedient.wait_text() == "exit 130");
  check_gone(tree, 2);
}

DOCTEST_TEST_CASE("Ctrl-C ends the loop of an iterator") {
  for (const auto* placement : {"process", "thread", "local"}) {
    DOCTEST_CAPTURE(placement);
    Program host("iterator", placement);
    DOCTEST_CHECK(host.read_line() == "running");
    host.signal(SIGINT);
    DOCTEST_CHECK(host.wait_text() == "exit 130");
  }
}

DOCTEST_TEST_CASE("a second Ctrl-C ends a run on threads that never return at once") {
  const TempFolder folder;
  Program host("stubborn_threads", "", temporary_files_in(folder));
  const auto tree = watch_tree(host.read_line());
  host.signal(SIGINT);
  skip_to(host, "stopping");
  host.signal(SIGINT);
  // Without the second one: after a minute.
  DOCTEST_CHECK(time_of([&] { DOCTEST_CHECK(host.wait_text() == "exit 130"); }) < std::chrono::seconds(30));
  check_gone(tree, 2);
}

DOCTEST_TEST_CASE("Ctrl-C ends a run whose output nobody reads") {
  Program host("blocked_output");
  DOCTEST_CHECK(!host.read_line().empty());
  host.signal(SIGINT);
  DOCTEST_CHECK(host.wait_text() == "exit 130");
}

DOCTEST_TEST_CASE("a Ctrl-C for a child that the program has forked is not for its run") {
  Program host("forking");
  DOCTEST_CHECK(host.read_line() == "child: signal 2");
  DOCTEST_CHECK(host.read_line() == "the run goes on");
  DOCTEST_CHECK(host.wait_text() == "exit 0");
}

DOCTEST_TEST_CASE("a program may fork before its first trainer and each process has workers of its own") {
  if (std::getenv("TROUPE_SANITIZED") != nullptr) return skip(no_forks_of_threads);
  auto fastest = milliseconds::max();
  for (int i = 0; i < 3 && fastest >= milliseconds(900); ++i) {  // the machine may be busy once or twice
    Program host("forking_first");
    for (const auto* line : {"child: exit 0", "[0,1]", "child: exit 0",  // the child of the child, the child
                             "[0,1]", "child: exit 0", "[0,1]", "the same workers", "the same fork server"})
      DOCTEST_CHECK(host.read_line() == line);
    const auto tree = watch_tree(host.read_line());
    // The child that is left holds a copy of the fork server's socket: waiting for that to close takes a second.
    fastest = std::min(fastest, time_of([&] { DOCTEST_CHECK(host.wait_text() == "exit 0"); }));
    check_gone(tree, 5);
  }
  DOCTEST_CHECK(fastest < milliseconds(900));
}

DOCTEST_TEST_CASE("a fork of a program that has used troupe is told so at once and harms nobody") {
  const std::string refused =
      "invalid_state: this process is a fork of one that has used troupe: fork before the first Trainer, or exec";
  if (std::getenv("TROUPE_SANITIZED") != nullptr) return skip(no_forks_of_threads);
  for (const std::string placement : {"process", "thread", "local"}) {
    DOCTEST_CAPTURE(placement);
    Program host("forking_later", placement);
    const std::string ranks = placement == "local" ? "[0]" : "[0,1]";
    std::vector<std::string> lines = {ranks, refused, refused, refused, refused};
    const auto own_trainer = [&](bool works) {
      if (works) lines.insert(lines.end(), {"[0,1]", "no error"});
      if (!works) lines.push_back(refused);
      lines.push_back("child: exit 0");
    };
    own_trainer(placement == "local");  // of others, the parent's actor system is there
    lines.insert(lines.end(), {"the run goes on", ranks});
    own_trainer(placement != "process");  // it is gone, but not what starts processes
    for (const auto& line : lines) DOCTEST_CHECK(host.read_line() == line);
    DOCTEST_CHECK(host.wait_text() == "exit 0");
  }
}

DOCTEST_TEST_CASE("the second Ctrl-C ends a program whose own thread does not stop") {
  const TempFolder folder;
  Program host("local", "stubborn", temporary_files_in(folder));
  const auto tree = watch_tree(host.read_line());
  host.signal(SIGINT);
  DOCTEST_CHECK(host.read_line() == "stopping");
  host.signal(SIGINT);
  DOCTEST_CHECK(host.wait_text() == "signal 2");
  check_gone(tree, 2);
}

DOCTEST_TEST_CASE("the third Ctrl-C ends a program whose callback does not return") {
  const TempFolder folder;
  Program host("stuck_callback", "", temporary_files_in(folder));
  const auto tree = watch_tree(host.read_line());
  const ProcessWatch watch(host.pid());
  int sent = 0;
  for (; !watch.ends_within(milliseconds(5)); ++sent) host.signal(SIGINT);  // equal signals may melt into one
  DOCTEST_CHECK(sent >= 3);
  DOCTEST_CHECK(host.wait_text() == "signal 2");
  check_gone(tree, 3);
}

DOCTEST_TEST_CASE("signals are counted for each run, so a program whose runs overlap can go on after many") {
  Program host("overlapping");
  for (int run = 0; run < 5; ++run) DOCTEST_CHECK(host.read_line() == "interrupted");
  DOCTEST_CHECK(host.wait_text() == "exit 0");
}

DOCTEST_TEST_CASE("Ctrl-C while callbacks start is not lost") {
  for (const auto* where : {"process", "thread", "local"}) {
    DOCTEST_CAPTURE(where);
    Program host("slow_callback", where);
    DOCTEST_CHECK(host.read_line() == "the run was ended by Ctrl-C; interrupted; processes 2");
    DOCTEST_CHECK(host.wait_text() == "exit 130");
  }
}

DOCTEST_TEST_CASE("a trainer with static storage ends with its program") {
  const TempFolder folder;
  Program host("static_trainer", folder.path().string());
  const auto tree = watch_tree(host.read_line());
  DOCTEST_CHECK(host.wait_text() == "exit 7");
  check_gone(tree, 4);
}

DOCTEST_TEST_CASE("init can leave signals to the program") {
  Program host("without_signals");
  DOCTEST_CHECK(host.read_line() == "running");
  host.signal(SIGINT);
  DOCTEST_CHECK(host.read_line() == "handled 1");
  DOCTEST_CHECK(host.wait_text() == "exit 0");
}

DOCTEST_TEST_CASE("signal handlers are ours in a run and the program's before and after") {
  const auto handler_of = [](int number) {
    struct sigaction action = {};
    ::sigaction(number, nullptr, &action);
    return action.sa_handler;
  };
  constexpr auto own = +[](int) {};
  const auto old_int = ::signal(SIGINT, own);
  const auto old_term = ::signal(SIGTERM, SIG_IGN);
  TestTrainer first({.num_workers = 1, .placement = Placement::thread});
  TestTrainer second({.num_workers = 1, .placement = Placement::thread});
  first->start();
  DOCTEST_CHECK((handler_of(SIGINT) == own));
  constexpr auto report_for_ever = [] {
    for (;;) train::report({{"x", 1}});
  };
  {
    auto rounds = first->run_iterator(report_for_ever);
    {
      auto more_rounds = second->run_iterator(report_for_ever);
      DOCTEST_CHECK((handler_of(SIGINT) != own));
      DOCTEST_CHECK((handler_of(SIGTERM) != SIG_IGN));
    }
    DOCTEST_CHECK((handler_of(SIGINT) != own));  // the other run is still active
  }
  DOCTEST_CHECK((handler_of(SIGINT) == own));
  DOCTEST_CHECK((handler_of(SIGTERM) == SIG_IGN));
  ::signal(SIGINT, old_int);
  ::signal(SIGTERM, old_term);
}

DOCTEST_TEST_CASE("without init threads and local mode work and processes are an error that says so") {
  Program host("without_init");
  DOCTEST_CHECK(host.read_line() == "[0,1]");
  DOCTEST_CHECK(host.read_line() == "[1]");
  const auto line = host.read_line();
  DOCTEST_CHECK(line.starts_with("invalid_state"));
  DOCTEST_CHECK(line.find("troupe::init(argc, argv)") != std::string::npos);
  DOCTEST_CHECK(host.wait_text() == "exit 0");
}

// Without descriptors UBSan takes every object for broken.
DOCTEST_TEST_CASE("a start that runs out of descriptors fails soon and harms nobody") {
  if (std::getenv("TROUPE_SANITIZED") != nullptr) return skip("UBSan needs a pipe to look at an object");
  Program host("few_descriptors");
  const auto line = host.read_line();
  DOCTEST_CHECK_MESSAGE(line.starts_with("start_failed"), line);
  DOCTEST_CHECK(line.find("ulimit -n") != std::string::npos);
  DOCTEST_CHECK(host.read_line() == "soon");
  DOCTEST_CHECK(host.read_line() == "[0,1]");
  DOCTEST_CHECK(host.wait_text() == "exit 0");
}

}  // namespace troupe::test
