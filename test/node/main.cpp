// SPDX-License-Identifier: Apache-2.0
// Tests of the process layer. The program is its own fork server and worker, and plays other host programs when a test
// asks for it with `--host=`.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <thread>

#include "actors/node/node.hpp"
#include "test/node/hosts.hpp"
#include "test/node/worker_commands.hpp"

namespace {

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

/// A second thread keeps the program from forking its fork server, so that it is re-executed.
void start_idle_thread() {
  std::thread([] {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  const bool is_fork_server = first == "--troupe-fork-server";
  if (is_fork_server && is_set("TROUPE_TEST_END_BEFORE_INIT")) {
    return 0;
  }
  if (is_set("TROUPE_TEST_REEXEC") && (!is_fork_server || is_set("TROUPE_TEST_THREAD_IN_SERVER"))) {
    start_idle_thread();
  }
  if (first == "--host=print_into_closed_streams") {
    ::close(STDIN_FILENO);
    ::close(STDERR_FILENO);
  }
  if (first != "--host=without_init") {
    troupe::node::init_processes(argc, argv, troupe::test::obey_commands);
  }
  if (first.starts_with("--host=")) {
    return troupe::test::play_host(first.substr(7));
  }
  doctest::Context context(argc, argv);
  context.setOption("order-by", "suite");
  return context.run();
}
