// SPDX-License-Identifier: Apache-2.0
#include "actors/termination_signal.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "actors/node/threads.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace {

// All that the handler may touch.
std::atomic<int> signal_pipe{-1};
std::atomic<pid_t> worker{-1};

void on_signal(int) {
  if (::getpid() != worker.load()) {  // a child that user code has forked: the notice is not for it
    ::signal(SIGTERM, SIG_DFL);
    ::raise(SIGTERM);
    return;
  }
  const int saved = errno;
  const char byte = 0;
  if (::write(signal_pipe.load(), &byte, 1) < 0) errno = 0;  // a full pipe says it already
  errno = saved;
}

}  // namespace

void TerminationSignal::watch(std::function<void()> then) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    log_warning("no descriptors are left for the signal pipe: SIGTERM ends this worker without notice");
    return;
  }
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  signal_pipe = ends[1];
  worker = ::getpid();
  node::start_thread("troupe-term", [from = ends[0], then = std::move(then)] {
    for (char byte = 0;;) {
      const auto count = ::read(from, &byte, 1);
      if (count < 0 && errno == EINTR) continue;
      if (count != 1) return;
      then();
    }
  }).detach();
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGTERM, &action, nullptr);
}

void TerminationSignal::restore() {
  struct sigaction now = {};
  ::sigaction(SIGTERM, nullptr, &now);
  if (now.sa_handler == on_signal) ::signal(SIGTERM, SIG_DFL);
}

}  // namespace troupe
