// SPDX-License-Identifier: Apache-2.0
// The life of a worker process: its start, its ends, its surroundings, its output.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <thread>
#include <troupe/error.hpp>

#include "actors/node/node.hpp"
#include "test/node/harness.hpp"
#include "test/node/lines.hpp"

namespace troupe::test {

using node::Node;

namespace {

bool dumps_are_piped() { return read_file("/proc/sys/kernel/core_pattern").starts_with("|"); }

}  // namespace

DOCTEST_TEST_CASE("every end of a worker is told exactly") {
  struct Case {
    std::string command;
    Kind kind;
    int value;
    std::string text;
  };
  for (const auto& [command, kind, value, text] : {
           Case{"return", Kind::exited, 0, "exited with status 0"},
           Case{"exit 3", Kind::exited, 3, "exited with status 3"},
           Case{"raise 6", Kind::signaled, SIGABRT, "killed by SIGABRT (abort() or an uncaught exception)"},
           Case{"throw oh", Kind::signaled, SIGABRT, "killed by SIGABRT (abort() or an uncaught exception)"},
           Case{"raise 9", Kind::signaled, SIGKILL, "killed by SIGKILL (out of memory?)"},
           Case{"raise 11", Kind::signaled, SIGSEGV, "killed by SIGSEGV (crash, or stack overflow?)"},
           Case{"overflow", Kind::signaled, SIGSEGV, "killed by SIGSEGV (crash, or stack overflow?)"},
       }) {
    DOCTEST_CAPTURE(command);
    TestWorker worker;
    const auto pid = worker.pid();
    worker.tell(command);
    const auto end = worker.wait_end();
    DOCTEST_CHECK(end.kind == kind);
    DOCTEST_CHECK(end.pid == pid);
    DOCTEST_CHECK(end.value == value);
    DOCTEST_CHECK(end.text == text);
    DOCTEST_CHECK(Node::instance().pid_of(worker.token()) == -1);
  }
}

DOCTEST_TEST_CASE("a worker is forked with its token, and ends with the last event") {
  TestWorker worker;
  DOCTEST_CHECK(worker.ask("token") == std::to_string(worker.token()));
  DOCTEST_CHECK(Node::instance().pid_of(worker.token()) == worker.pid());
  worker.ask("return");
  worker.wait_end();
  auto events = worker.events();
  std::erase_if(events, [](const auto& event) { return event.kind == Kind::dying; });  // may be told before the end
  DOCTEST_CHECK(events.size() == 2);
  DOCTEST_CHECK(events.front().kind == Kind::forked);
  DOCTEST_CHECK(worker.events().back().is_end());
}

DOCTEST_TEST_CASE("a worker has clean surroundings") {
  TestWorker worker;
  DOCTEST_CHECK(worker.ask("surroundings") == fmt::format("fds=0,1,2,3,4 stdin=/dev/null name=troupe-worker core={} "
                                                          "masked=none sigpipe=ignored sigterm=default",
                                                          dumps_are_piped() ? 1 : 0));
  DOCTEST_CHECK(::getsid(worker.pid()) == Node::instance().fork_server_pid());
}

DOCTEST_TEST_CASE("a worker dumps core only if asked to") {
  rlimit before{};
  ::getrlimit(RLIMIT_CORE, &before);
  const rlimit some{std::min<rlim_t>(before.rlim_max, 12345), before.rlim_max};
  const auto core_of_worker = [&](std::vector<std::string> environment) {
    ::setrlimit(RLIMIT_CORE, &some);
    Program program({"--host=say_surroundings"}, std::move(environment));
    ::setrlimit(RLIMIT_CORE, &before);
    const auto text = program.read_all();
    const auto begin = text.find("core=");
    return text.substr(begin, text.find(' ', begin) - begin);
  };
  DOCTEST_CHECK(core_of_worker({}) == fmt::format("core={}", dumps_are_piped() ? 1 : 0));
  DOCTEST_CHECK(core_of_worker({"TROUPE_CORE_DUMPS=0"}) == fmt::format("core={}", dumps_are_piped() ? 1 : 0));
  DOCTEST_CHECK(core_of_worker({"TROUPE_CORE_DUMPS=1"}) == fmt::format("core={}", some.rlim_cur));
}

DOCTEST_TEST_CASE("a worker has no Node of its own") {
  TestWorker worker;
  DOCTEST_CHECK(worker.ask("node") == "invalid_state");
}

DOCTEST_TEST_CASE("stop and continue are told") {
  TestWorker worker;
  Node::instance().signal(worker.token(), SIGSTOP);
  const auto stopped = worker.wait_for(Kind::stopped);
  DOCTEST_CHECK(stopped.value == SIGSTOP);
  DOCTEST_CHECK(stopped.text == "stopped by SIGSTOP");
  Node::instance().signal(worker.token(), SIGCONT);
  worker.wait_for(Kind::continued);
  DOCTEST_CHECK(worker.ask("print alive") == "ok");
}

DOCTEST_TEST_CASE("a kill of our own is not taken for a lack of memory") {
  TestWorker worker;
  worker.pid();
  Node::instance().signal(worker.token(), SIGKILL);
  DOCTEST_CHECK(worker.wait_end().text == "killed by SIGKILL (sent by troupe)");
  Node::instance().signal(worker.token(), SIGKILL);  // nothing happens
}

DOCTEST_TEST_CASE("lines are printed with their origin and kept plain in the log file") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "new" / "logs" / "rank_1.log";
  int ends[2];
  DOCTEST_REQUIRE(::pipe(ends) == 0);
  const node::UniqueFd reader(ends[0]);
  const node::UniqueFd writer(ends[1]);
  TestWorker worker(1, file);
  const auto pid = worker.pid();
  {
    const StdoutTo redirected(writer.get());
    worker.ask("print hello");
    worker.ask("partial no end");
    drain(worker.token());
  }
  char text[256];
  const std::string printed(text, ::read(reader.get(), text, sizeof text));
  DOCTEST_CHECK(printed == fmt::format("(rank 1, pid {0}) hello\n(rank 1, pid {0}) no end\n", pid));
  worker.ask("eprint error");
  drain(worker.token());
  DOCTEST_CHECK(read_file(file) == "hello\nno end\nerror\n");

  const auto next = folder.path() / "next.log";
  worker.ask("print old");
  Node::instance().set_log_file(worker.token(), next);
  worker.ask("print new");
  drain(worker.token());
  DOCTEST_CHECK(read_file(file) == "hello\nno end\nerror\nold\n");
  DOCTEST_CHECK(read_file(next) == "new\n");
}

DOCTEST_TEST_CASE("the last lines are known when the end is told") {
  TestWorker worker;
  for (int i = 1; i <= 30; ++i) {
    worker.ask(fmt::format("print line {}", i));
  }
  worker.ask("partial last words");
  worker.tell("exit 1");
  worker.wait_end();
  const auto lines = Node::instance().last_lines(worker.token());
  DOCTEST_REQUIRE(lines.size() == 20);
  DOCTEST_CHECK(lines.front() == "line 12");
  DOCTEST_CHECK(lines.back() == "last words");
  drain(worker.token());  // also of one that is gone
}

DOCTEST_TEST_CASE("last lines can begin anew") {
  TestWorker worker;
  worker.pid();  // nothing is read before the Node knows of the fork
  worker.ask("print old");
  worker.ask("partial no end");
  Node::instance().forget_last_lines(worker.token());
  worker.ask("print , and new");
  worker.ask("print newer");
  drain(worker.token());
  DOCTEST_CHECK(Node::instance().last_lines(worker.token()) == std::vector<std::string>{"no end, and new", "newer"});
}

DOCTEST_TEST_CASE("an uncaught exception leaves its text in the last lines") {
  TestWorker worker;
  worker.tell("throw too hot");
  worker.wait_end();
  const auto lines = Node::instance().last_lines(worker.token());
  DOCTEST_REQUIRE_FALSE(lines.empty());
  DOCTEST_CHECK(lines.back().find("too hot") != std::string::npos);
}

DOCTEST_TEST_CASE("what a worker has not flushed is flushed when it returns") {
  TestWorker worker;
  worker.ask("unflushed words");
  worker.ask("return");
  worker.wait_end();
  DOCTEST_CHECK(Node::instance().last_lines(worker.token()) == std::vector<std::string>{"words"});
}

DOCTEST_TEST_CASE("a megabyte without a newline is cut into lines") {
  const TemporaryFolder folder;
  TestWorker worker(0, folder.path() / "log");
  const node::UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const StdoutTo redirected(null.get());
  DOCTEST_CHECK(worker.ask("flood 1048576") == "ok");
  drain(worker.token());
  const auto text = read_file(folder.path() / "log");
  DOCTEST_CHECK(text.size() == 1048576 + 16);
  DOCTEST_CHECK(std::count(text.begin(), text.end(), '\n') == 16);
}

DOCTEST_TEST_CASE("a blocked terminal stops the printing, not the watching") {
  int ends[2];
  DOCTEST_REQUIRE(::pipe(ends) == 0);
  const node::UniqueFd reader(ends[0]);
  node::UniqueFd writer(ends[1]);
  constexpr int lines = 12 * 1024;
  TestWorker talker;
  TestWorker victim(1);
  victim.pid();
  std::string answer;
  std::size_t newlines = 0;
  node::ProcessEvent end;
  std::vector<std::string> last_lines;
  std::thread consumer;
  {
    const StdoutTo redirected(writer.get());
    talker.tell(fmt::format("lines {}", lines));  // a line is 1 KiB
    while (answer != "MiB 3" && read_line(talker.stream(), answer)) {
    }
    // Now the printer is blocked, inside a write to stdout. A check that fails would wait for it, so checks come later.
    victim.tell("raise 9");
    end = victim.wait_end();
    last_lines = Node::instance().last_lines(talker.token());
    consumer = std::thread([&] {
      char buffer[65536];
      for (ssize_t size = 0; (size = ::read(reader.get(), buffer, sizeof buffer)) > 0;) {
        newlines += static_cast<std::size_t>(std::count(buffer, buffer + size, '\n'));
      }
    });
    while (read_line(talker.stream(), answer) && answer != "ok") {
    }
    drain(talker.token());
  }
  writer.reset();
  consumer.join();
  DOCTEST_CHECK(end.value == SIGKILL);
  DOCTEST_CHECK(last_lines.size() == 20);
  DOCTEST_CHECK(answer == "ok");
  DOCTEST_CHECK(newlines == lines);
}

DOCTEST_TEST_CASE("a grandchild that keeps the pipes open does not hide the end") {
  const node::UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const StdoutTo redirected(null.get());
  for (const std::string manner : {"silent", "noisy"}) {
    DOCTEST_CAPTURE(manner);
    TestWorker worker;
    const auto grandchild = std::stoi(worker.ask(fmt::format("grandchild {}", manner)));
    const auto pidfd = node::open_pidfd(grandchild);
    worker.tell("exit 4");
    DOCTEST_CHECK(worker.wait_end().value == 4);
    node::signal_pidfd(pidfd.get(), SIGKILL);
  }
}

DOCTEST_TEST_CASE("a descriptor travels to another rank of the group, and not further") {
  TestWorker sender(0, {}, 7);
  TestWorker receiver(1, {}, 7);
  TestWorker stranger(1, {}, 8);
  receiver.pid();
  stranger.pid();
  DOCTEST_CHECK(sender.ask("send_fd 1 in memory") == "ok");
  DOCTEST_CHECK(receiver.ask("receive_fd 20000") == "from 0: in memory");
  DOCTEST_CHECK(stranger.ask("receive_fd 0") == "nothing");
}

DOCTEST_TEST_CASE("no descriptors left is an error that says what to do") {
  TestWorker before;
  before.pid();
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  auto low = limit;
  low.rlim_cur = count_entries("/proc/self/fd") + 2;
  ::setrlimit(RLIMIT_NOFILE, &low);
  std::exception_ptr failure;  // looked at later: sanitizers, too, need descriptors
  try {
    const TestWorker refused(5);
  } catch (...) {
    failure = std::current_exception();
  }
  ::setrlimit(RLIMIT_NOFILE, &limit);
  DOCTEST_REQUIRE(failure);
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    const std::string text = error.what();
    DOCTEST_CHECK(error.code() == ErrorCode::start_failed);
    DOCTEST_CHECK(error.rank() == 5);
    DOCTEST_CHECK(text.find("rank 5") != std::string::npos);
    DOCTEST_CHECK(text.find("ulimit -n") != std::string::npos);
  }
  DOCTEST_CHECK(before.ask("print still here") == "ok");
}

}  // namespace troupe::test
