// SPDX-License-Identifier: Apache-2.0
// The end of the host program: nothing is left behind, and nothing hangs.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <csignal>
#include <sstream>

#include "test/node/harness.hpp"

namespace troupe::test {

namespace {

struct Pids {
  node::UniqueFd server;
  node::UniqueFd worker;
};

/// From the line that a host says. Empty for a process that is gone already.
Pids open_pids(const std::string& line) {
  std::istringstream words(line);
  pid_t server = -1;
  pid_t worker = -1;
  words >> server >> worker;
  DOCTEST_REQUIRE_MESSAGE(worker > 0, line);
  return {node::open_pidfd(server), node::open_pidfd(worker)};
}

const std::vector<std::vector<std::string>> both_ways = {{}, {"TROUPE_TEST_REEXEC=1"}};

}  // namespace

DOCTEST_TEST_CASE("exit of the host on any thread ends all its processes") {
  for (const auto& environment : both_ways) {
    for (const std::string host :
         {"--host=exit_main", "--host=exit_in_event", "--host=exit_in_drain", "--host=exit_with_stopped_server"}) {
      DOCTEST_CAPTURE(host);
      Program program({host}, environment);
      const auto pids = open_pids(program.read_line());
      const int status = program.wait();
      DOCTEST_CHECK(WIFEXITED(status));
      DOCTEST_CHECK(WEXITSTATUS(status) == 7);
      DOCTEST_CHECK(goes_away(pids.server));
      DOCTEST_CHECK(goes_away(pids.worker));
    }
  }
}

DOCTEST_TEST_CASE("who ends a worker behind the end of main is told of its end") {
  Program program({"--host=exit_before_static"});
  const auto pids = open_pids(program.read_line());
  DOCTEST_CHECK(program.read_line() == "ended with the program");
  DOCTEST_CHECK(WEXITSTATUS(program.wait()) == 7);
  DOCTEST_CHECK(goes_away(pids.worker));
}

DOCTEST_TEST_CASE("exit of a host that never launched anything") {
  Program program({"--host=without_worker"});
  DOCTEST_CHECK(program.read_all() == "");  // until the fork server, too, has closed it
  DOCTEST_CHECK(WEXITSTATUS(program.wait()) == 7);
}

DOCTEST_TEST_CASE("a killed host takes all its processes with it") {
  for (const auto& environment : both_ways) {
    Program program({"--host=wait_for_ever"}, environment);
    const auto pids = open_pids(program.read_line());
    DOCTEST_CHECK(pids.worker);
    ::kill(program.pid(), SIGKILL);
    DOCTEST_CHECK(WIFSIGNALED(program.wait()));
    DOCTEST_CHECK(goes_away(pids.server));
    DOCTEST_CHECK(goes_away(pids.worker));
  }
}

DOCTEST_TEST_CASE("exit in a fork of the host's own leaves the workers alone") {
  // The fork lacks the threads, and so their stacks, from which a leak checker would see what they own.
  Program program({"--host=exit_in_own_fork"}, {"ASAN_OPTIONS=detect_leaks=0"});
  DOCTEST_CHECK(program.read_line() == "still there");
  const auto pids = open_pids(program.read_line());
  DOCTEST_CHECK(WEXITSTATUS(program.wait()) == 7);
  DOCTEST_CHECK(goes_away(pids.worker));
}

DOCTEST_TEST_CASE("what a host prints into streams that were closed before it began does not reach the fork server") {
  for (const auto& environment : both_ways) {
    Program program({"--host=print_into_closed_streams"}, environment);
    DOCTEST_CHECK(program.read_line() == "still there");
    open_pids(program.read_line());
    DOCTEST_CHECK(WEXITSTATUS(program.wait()) == 7);
  }
}

DOCTEST_TEST_CASE("a host that did not call init is told so") {
  Program program({"--host=without_init"});
  const auto line = program.read_line();
  DOCTEST_CHECK(line.starts_with("invalid_state"));
  DOCTEST_CHECK(line.find("troupe::init(argc, argv)") != std::string::npos);
}

DOCTEST_TEST_CASE("a host whose main ends before init when run anew is told so") {
  Program program({"--host=say_why_not"}, {"TROUPE_TEST_REEXEC=1", "TROUPE_TEST_END_BEFORE_INIT=1"});
  DOCTEST_CHECK(program.read_line().find("in the first line of main()") != std::string::npos);
}

DOCTEST_TEST_CASE("a host that starts threads before init is told so") {
  Program program({"--host=say_why_not"}, {"TROUPE_TEST_REEXEC=1", "TROUPE_TEST_THREAD_IN_SERVER=1"});
  DOCTEST_CHECK(program.read_line().find("more than one thread") != std::string::npos);
}

}  // namespace troupe::test
