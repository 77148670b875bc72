// SPDX-License-Identifier: Apache-2.0
#include "actors/node/worker_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "actors/node/fork_server_process.hpp"
#include "actors/node/life_line.hpp"
#include "actors/node/process_state.hpp"

namespace troupe::node {

namespace {

constexpr int stream_fd = 3;
constexpr int descriptors_fd = 4;

/// 0 to 2: /dev/null and the log pipes; 3 and 4: the sockets; nothing else stays open. The life line is memory by now.
void arrange_descriptors(const std::vector<UniqueFd>& fds) {
  std::array<int, 4> high{};
  for (std::size_t i = 0; i < high.size(); ++i) {
    high[i] = ::fcntl(fds[i].get(), F_DUPFD_CLOEXEC, descriptors_fd + 1);  // above all targets: none overwrites another
  }
  ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  ::dup2(high[2], STDOUT_FILENO);
  ::dup2(high[3], STDERR_FILENO);
  ::dup3(high[0], stream_fd, O_CLOEXEC);
  ::dup3(high[1], descriptors_fd, O_CLOEXEC);
  ::close_range(descriptors_fd + 1, ~0U, 0);
}

/// Where dumps go through a pipe to a program, Linux ignores the limit, but for this value.
rlim_t core_limit() {
  char first = 0;
  const UniqueFd pattern(::open("/proc/sys/kernel/core_pattern", O_RDONLY | O_CLOEXEC));
  return ::read(pattern.get(), &first, 1) == 1 && first == '|' ? 1 : 0;
}

/// A core dump of a big process takes seconds, and its death is seen only after that.
void refuse_core_dumps() {
  const char* wanted = std::getenv("TROUPE_CORE_DUMPS");
  if (wanted != nullptr && std::string_view(wanted) == "1") {
    return;
  }
  rlimit limit{};
  ::getrlimit(RLIMIT_CORE, &limit);
  limit.rlim_cur = std::min(core_limit(), limit.rlim_max);
  ::setrlimit(RLIMIT_CORE, &limit);
}

}  // namespace

void run_worker(Token token, const std::vector<UniqueFd>& fds, pid_t fork_server, WorkerMain worker_main) noexcept {
  die_with_parent(fork_server);
  ::prctl(PR_SET_NAME, "troupe-worker");
  reset_signals();
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);  // the fork server blocks some
  hold_life_line(fds[4].get());
  arrange_descriptors(fds);
  refuse_core_dumps();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a pipe would be fully buffered
  process_state().is_worker = true;
  worker_main({token, stream_fd, descriptors_fd});
  std::cout.flush();
  std::fflush(stdout);
  ::_exit(0);
}

}  // namespace troupe::node
