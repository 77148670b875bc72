// SPDX-License-Identifier: Apache-2.0
// The level is read once a process, so each case runs in a child.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "runtime/base/log.hpp"

namespace {

/// What a process with this TROUPE_LOG writes to stderr.
std::string logged_with(const char* level) {
  int ends[2];
  DOCTEST_REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(STDOUT_FILENO);
    if (::open("/dev/null", O_WRONLY) != STDOUT_FILENO) ::_exit(126);  // the lowest free number
    level != nullptr ? ::setenv("TROUPE_LOG", level, 1) : ::unsetenv("TROUPE_LOG");
    ::execl("/proc/self/exe", "unit", "--no-skip", "--test-case=child: logs at every level", nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t size = 0; (size = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(size));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

}  // namespace

DOCTEST_TEST_CASE("child: logs at every level" * doctest::skip()) {
  DOCTEST_CHECK(troupe::detail::is_logged(troupe::detail::LogLevel::error));
  troupe::log_error("e{}", 1);
  troupe::log_warning("w{}", "{}");
  troupe::log_info("i");
  troupe::log_debug("d");
}

DOCTEST_TEST_CASE("TROUPE_LOG chooses what is logged, warnings and errors by default") {
  DOCTEST_CHECK(logged_with(nullptr) == "[troupe] error: e1\n[troupe] warning: w{}\n");
  DOCTEST_CHECK(logged_with("") == "[troupe] error: e1\n[troupe] warning: w{}\n");
  DOCTEST_CHECK(logged_with("error") == "[troupe] error: e1\n");
  DOCTEST_CHECK(logged_with("warning") == "[troupe] error: e1\n[troupe] warning: w{}\n");
  DOCTEST_CHECK(logged_with("info") == "[troupe] error: e1\n[troupe] warning: w{}\n[troupe] info: i\n");
  DOCTEST_CHECK(logged_with("debug") ==
                "[troupe] error: e1\n[troupe] warning: w{}\n[troupe] info: i\n[troupe] debug: d\n");
}

DOCTEST_TEST_CASE("a TROUPE_LOG that is no level is named once") {
  DOCTEST_CHECK(logged_with("loud") ==
                "[troupe] warning: TROUPE_LOG=loud is not a level; valid: error, warning (used now), info, debug\n"
                "[troupe] error: e1\n[troupe] warning: w{}\n");
}
