// SPDX-License-Identifier: Apache-2.0
#include "actors/node/process_state.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "actors/node/threads.hpp"

namespace troupe::node {

namespace {

constexpr std::chrono::milliseconds exit_patience{1000};

void end_early_server() { end_fork_server(std::move(process_state().early), exit_patience); }

std::vector<std::string> copy_environment() {
  std::vector<std::string> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    result.emplace_back(*entry);
  }
  return result;
}

/// A program that was started with one of them closed would have our sockets there, and print into them.
void open_standard_streams() {
  UniqueFd next;
  do {
    next.release();
    next.reset(::open("/dev/null", O_RDWR));
  } while (next && next.get() <= STDERR_FILENO);
}

}  // namespace

ProcessState& process_state() {
  static auto* state = new ProcessState;
  return *state;
}

void init_processes(int argc, char** argv, WorkerMain worker_main, FirstServer first) {
  auto& state = process_state();
  if (state.initialized) {
    return;
  }
  state.initialized = true;
  state.program_name = argc > 0 ? argv[0] : "troupe";
  state.environment = copy_environment();
  serve_if_asked(argc, argv, worker_main);
  open_standard_streams();
  ::signal(SIGPIPE, SIG_IGN);
  if (first == FirstServer::forked && has_one_thread()) {
    state.early = fork_fork_server(worker_main);
  }
  std::atexit(end_early_server);
}

const std::vector<std::string>& environment_at_init() { return process_state().environment; }

}  // namespace troupe::node
