// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <string>
#include <vector>

#include "actors/node/log_pipe.hpp"
#include "actors/node/log_printer.hpp"
#include "actors/node/signal_names.hpp"
#include "test/node/harness.hpp"

namespace troupe::test {

using node::LineSplitter;

namespace {

/// The lines that come out when these pieces go in, the partial one ended.
std::vector<std::string> split(const std::vector<std::string>& pieces) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  const auto emit = [&](std::string_view line) { lines.emplace_back(line); };
  for (const auto& piece : pieces) {
    splitter.feed(piece, emit);
  }
  splitter.finish(emit);
  return lines;
}

using Lines = std::vector<std::string>;

}  // namespace

DOCTEST_TEST_CASE("lines are found wherever the pieces are cut") {
  DOCTEST_CHECK(split({"one\ntwo\n"}) == Lines{"one", "two"});
  DOCTEST_CHECK(split({"on", "e\nt", "wo", "\n"}) == Lines{"one", "two"});
  DOCTEST_CHECK(split({"\n\n"}) == Lines{"", ""});
  DOCTEST_CHECK(split({"no end"}) == Lines{"no end"});
  DOCTEST_CHECK(split({""}) == Lines{});
}

DOCTEST_TEST_CASE("a line that is too long goes on as the next line") {
  const auto limit = LineSplitter::max_line;
  const std::string exact(limit, 'a');
  DOCTEST_CHECK(split({exact + "\n"}) == Lines{exact});
  DOCTEST_CHECK(split({exact, "\n"}) == Lines{exact});
  DOCTEST_CHECK(split({exact + "b\nc\n"}) == Lines{exact, "b", "c"});
  DOCTEST_CHECK(split({exact, "b"}) == Lines{exact, "b"});
  DOCTEST_CHECK(split({std::string(16 * limit, 'a')}).size() == 16);
}

DOCTEST_TEST_CASE("the end of a process is told in words") {
  DOCTEST_CHECK(node::killed_text(SIGKILL) == "killed by SIGKILL (out of memory?)");
  DOCTEST_CHECK(node::killed_text(SIGSEGV) == "killed by SIGSEGV (crash, or stack overflow?)");
  DOCTEST_CHECK(node::killed_text(SIGABRT) == "killed by SIGABRT (abort() or an uncaught exception)");
  DOCTEST_CHECK(node::killed_text(SIGTERM) == "killed by SIGTERM");
  DOCTEST_CHECK(node::killed_text(40) == "killed by signal 40");
  DOCTEST_CHECK(node::exited_text(3) == "exited with status 3");
}

DOCTEST_TEST_CASE("the printer says when it is full and when it has room again") {
  std::promise<void> room;
  node::LogPrinter printer([&] { room.set_value(); });
  std::promise<void> gate;
  printer.call([&] { gate.get_future().wait(); });
  const std::string half(node::LogPrinter::max_waiting / 2, 'x');
  DOCTEST_CHECK(printer.print({nullptr, half, {}, nullptr}));
  DOCTEST_CHECK(printer.print({nullptr, half, {}, nullptr}));
  DOCTEST_CHECK_FALSE(printer.print({nullptr, "x", {}, nullptr}));
  DOCTEST_CHECK(printer.full());
  gate.set_value();
  DOCTEST_CHECK(room.get_future().wait_for(patience) == std::future_status::ready);
  printer.flush(patience);
  DOCTEST_CHECK_FALSE(printer.full());
}

DOCTEST_TEST_CASE("a log file that cannot be written is given up, and lines are still printed") {
  const TemporaryFolder folder;
  int ends[2];
  DOCTEST_REQUIRE(::pipe(ends) == 0);
  const node::UniqueFd reader(ends[0]);
  node::UniqueFd writer(ends[1]);
  {
    const StdoutTo redirected(writer.get());
    node::LogPrinter printer([] {});
    const auto file = std::make_shared<node::LogFile>(folder.path());  // a folder
    printer.print({stdout, "first\n", "first\n", file});
    printer.print({stdout, "second\n", "second\n", file});
    printer.flush(patience);
  }
  char text[64];
  DOCTEST_CHECK(std::string(text, ::read(reader.get(), text, sizeof text)) == "first\nsecond\n");
}

DOCTEST_TEST_CASE("a log file is given up in silence when stderr cannot be written either") {
  const TemporaryFolder folder;
  const node::UniqueFd saved(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10));
  for (const bool is_open : {true, false}) {
    DOCTEST_CAPTURE(is_open);
    const node::UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
    ::dup2(full.get(), STDERR_FILENO);
    if (!is_open) {
      ::close(STDERR_FILENO);
    }
    std::promise<void> after;
    {
      node::LogPrinter printer([] {});
      printer.print({nullptr, {}, "a line\n", std::make_shared<node::LogFile>(folder.path())});
      printer.call([&] { after.set_value(); });
      printer.flush(patience);
    }
    ::dup2(saved.get(), STDERR_FILENO);
    DOCTEST_CHECK(after.get_future().wait_for(patience) == std::future_status::ready);
  }
}

}  // namespace troupe::test
