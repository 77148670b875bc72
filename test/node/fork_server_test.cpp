// SPDX-License-Identifier: Apache-2.0
// The fork server: its death, its backlog, many workers, nothing left behind.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

#include "actors/node/node.hpp"
#include "test/node/harness.hpp"
#include "test/support/skip.hpp"

namespace troupe::test {

using node::Node;

namespace {

pid_t server_pid() { return Node::instance().fork_server_pid(); }

/// Children of the fork server, zombies included.
std::string children_of_server() { return read_file(fmt::format("/proc/{0}/task/{0}/children", server_pid())); }

struct Footprint {
  std::size_t fds;
  std::size_t threads;
  std::size_t server_fds;
  bool operator==(const Footprint&) const = default;
};

Footprint footprint() {
  return {count_entries("/proc/self/fd"), count_entries("/proc/self/task"),
          count_entries(fmt::format("/proc/{}/fd", server_pid()))};
}

std::string mode() { return std::getenv("TROUPE_TEST_REEXEC") != nullptr ? "re-executed" : "forked"; }

}  // namespace

DOCTEST_TEST_CASE("the first fork server comes as the program asked for") {
  TestWorker worker;
  worker.pid();
  const auto command_line = read_file(fmt::format("/proc/{}/cmdline", server_pid()));
  const bool re_executed = command_line.find("--troupe-fork-server") != std::string::npos;
  DOCTEST_CHECK(re_executed == (mode() == "re-executed"));
  DOCTEST_CHECK(read_file(fmt::format("/proc/{}/comm", server_pid())) == "troupe-forksrv\n");
  DOCTEST_CHECK(::getsid(server_pid()) == server_pid());
}

DOCTEST_TEST_CASE("the fork server ignores signals that are meant for a whole job") {
  TestWorker worker;
  worker.pid();
  const auto server = server_pid();
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) DOCTEST_CHECK(::kill(server, number) == 0);
  TestWorker another;  // made behind the signals
  DOCTEST_CHECK(another.ask("getenv OMP_NUM_THREADS") != "");
  DOCTEST_CHECK(server_pid() == server);
  // Workers do not ignore them.
  DOCTEST_CHECK(::kill(another.pid(), SIGHUP) == 0);
  DOCTEST_CHECK(another.wait_end().text == "killed by SIGHUP");
}

DOCTEST_TEST_CASE("a hundred workers are killed and replaced without a trace") {
  TestWorker first;
  first.ask("return");
  first.wait_end();
  const auto before = footprint();
  for (int i = 0; i < 100; ++i) {
    TestWorker worker;
    DOCTEST_REQUIRE(worker.ask("token") == std::to_string(worker.token()));
    ::kill(worker.pid(), SIGKILL);
    DOCTEST_REQUIRE(worker.wait_end().value == SIGKILL);
  }
  DOCTEST_CHECK(footprint() == before);
  DOCTEST_CHECK(children_of_server().empty());
}

DOCTEST_TEST_CASE("sixty-four workers live at once") {
  std::vector<TestWorker> workers;
  for (int rank = 0; rank < 64; ++rank) {
    workers.emplace_back(rank);
  }
  for (auto& worker : workers) {
    DOCTEST_CHECK(worker.ask("token") == std::to_string(worker.token()));
  }
}

DOCTEST_TEST_CASE("more launches than the socket holds wait for the fork server") {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 8192) {
    skip("needs ulimit -n 8192");
    return;
  }
  TestWorker first;
  first.pid();
  ::kill(server_pid(), SIGSTOP);
  std::vector<TestWorker> workers;
  for (int rank = 0; rank < 400; ++rank) {
    workers.emplace_back(rank);
  }
  ::kill(server_pid(), SIGCONT);
  for (auto& worker : workers) {
    DOCTEST_REQUIRE(worker.pid() > 0);
  }
}

DOCTEST_TEST_CASE("a signal from before the fork comes right after it") {
  TestWorker first;
  first.pid();
  ::kill(server_pid(), SIGSTOP);
  TestWorker worker;
  Node::instance().signal(worker.token(), SIGTERM);
  DOCTEST_CHECK(Node::instance().pid_of(worker.token()) == -1);
  ::kill(server_pid(), SIGCONT);
  DOCTEST_CHECK(worker.wait_end().value == SIGTERM);
  auto events = worker.events();
  std::erase_if(events,
                [](const auto& event) { return event.kind == node::ProcessEvent::Kind::dying; });  // if it got so far
  DOCTEST_CHECK(events.size() == 2);
}

DOCTEST_TEST_CASE("everything holds with a re-executed fork server, too") {
  // All others but the host programs' (they test both ways themselves) and this one.
  Program program({"--test-case-exclude=*host*,everything holds*"}, {"TROUPE_TEST_REEXEC=1"});
  const auto output = program.read_all();
  DOCTEST_CHECK_MESSAGE(program.wait() == 0, output);
}

// Last of all (main orders by suite): after these, the fork server is a re-executed one in any case.
DOCTEST_TEST_SUITE_BEGIN("deaths of the fork server");

DOCTEST_TEST_CASE("the death of the fork server is the death of its workers, and the next launch makes a new one") {
  for (int round = 0; round < 3; ++round) {
    TestWorker one(0);
    TestWorker two(1);
    one.ask("partial last words");
    two.pid();
    const auto old = server_pid();
    ::kill(old, SIGKILL);
    for (auto* worker : {&one, &two}) {
      const auto end = worker->wait_end();
      DOCTEST_CHECK(end.kind == Kind::signaled);
      DOCTEST_CHECK(end.value == SIGKILL);
      DOCTEST_CHECK(end.text == "killed with the fork server");
    }
    DOCTEST_CHECK(Node::instance().last_lines(one.token()) == std::vector<std::string>{"last words"});
    TestWorker next;
    DOCTEST_CHECK(next.ask("print alive") == "ok");
    DOCTEST_CHECK(server_pid() != old);
  }
}

DOCTEST_TEST_CASE("a fork server that stays stopped does not hide the end of a worker that was killed") {
  TestWorker worker;
  TestWorker other;
  worker.pid();
  other.pid();
  const auto stopped = server_pid();
  ::kill(stopped, SIGSTOP);
  Node::instance().signal(worker.token(), SIGKILL);
  DOCTEST_CHECK(worker.wait_end().value == SIGKILL);
  DOCTEST_CHECK(other.wait_end().text == "killed with the fork server");
  TestWorker next;
  DOCTEST_CHECK(next.ask("print alive") == "ok");
  DOCTEST_CHECK(server_pid() != stopped);
}

DOCTEST_TEST_CASE("a launch that meets the death of the fork server fails with a reason") {
  TestWorker first;
  first.pid();
  ::kill(server_pid(), SIGSTOP);
  TestWorker worker;
  ::kill(server_pid(), SIGKILL);
  const auto end = worker.wait_end();
  DOCTEST_CHECK(end.kind == Kind::failed);
  DOCTEST_CHECK(end.text == "could not be forked: the fork server died");
}

DOCTEST_TEST_CASE("launches that race with deaths of the fork server never hang") {
  for (int i = 0; i < 50; ++i) {
    if (const auto server = server_pid(); server > 0) {
      ::kill(server, SIGKILL);
    }
    TestWorker worker;
    if (worker.wait_first().kind == Kind::forked && i % 2 == 0) {
      worker.ask("print alive");  // or the next death meets it earlier
    }
  }
}

DOCTEST_TEST_SUITE_END();

}  // namespace troupe::test
