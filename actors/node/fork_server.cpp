// SPDX-License-Identifier: Apache-2.0
// The fork server's own life. How the host makes and ends one: fork_server_host.cpp.
#include "actors/node/fork_server.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <map>

#include "actors/node/fork_server_process.hpp"
#include "actors/node/threads.hpp"
#include "actors/node/worker_process.hpp"

namespace troupe::node {

namespace {

constexpr std::size_t fds_of_a_worker = 5;

class Server {
public:
  Server(int socket, WorkerMain worker_main) : socket_(socket), worker_main_(worker_main) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    // It ends with its host. Who signals a whole job (a service manager, a batch system) means the programs in it,
    // whose workers would lose the time to save what they have. Not ignored: a worker takes the mask over, not what
    // waits.
    sigset_t blocked = child;
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      sigaddset(&blocked, number);
    }
    ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
    signals_ = UniqueFd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  [[noreturn]] void run() {
    tell({ForkEvent::Kind::hello, me_, 0, 0, 0});
    for (;;) {
      pollfd entries[] = {{socket_, POLLIN, 0}, {signals_.get(), POLLIN, 0}};
      if (::poll(entries, 2, -1) < 0) {
        continue;
      }
      if (entries[1].revents != 0) {
        reap();
      }
      if (entries[0].revents != 0) {
        obey();
      }
    }
  }

private:
  void tell(const ForkEvent& event, std::span<const int> fds = {}) {
    if (!send_message(socket_, event, fds)) {
      ::_exit(0);  // the host is gone, and the workers die with us
    }
  }

  void reap() {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) > 0) {
    }
    int status = 0;
    pid_t pid = 0;
    while ((pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {  // one signal may stand for many
      report(pid, status);
    }
  }

  void report(pid_t pid, int status) {
    const auto found = tokens_.find(pid);
    if (found == tokens_.end()) {
      return;
    }
    const auto token = found->second;
    using Kind = ForkEvent::Kind;
    if (WIFSTOPPED(status)) {
      tell({Kind::stopped, pid, WSTOPSIG(status), 0, token});
    } else if (WIFCONTINUED(status)) {
      tell({Kind::continued, pid, 0, 0, token});
    } else {
      tokens_.erase(found);
      tell(WIFEXITED(status) ? ForkEvent{Kind::exited, pid, WEXITSTATUS(status), 0, token}
                             : ForkEvent{Kind::signaled, pid, WTERMSIG(status), 0, token});
    }
  }

  void obey() {
    ForkRequest request;
    auto received = receive_message(socket_, request);
    if (received.size != sizeof request) {
      ::_exit(0);
    }
    if (request.signal != 0) {
      pass_signal(request);
    } else {
      fork_worker(request.token, std::move(received.fds));
    }
  }

  void pass_signal(const ForkRequest& request) {
    for (const auto& [pid, token] : tokens_) {
      if (token == request.token) {
        ::kill(pid, request.signal);  // not reaped yet, so the pid is still its own
      }
    }
  }

  // The descriptors are closed on return: a copy kept here would hide the death of the worker.
  void fork_worker(Token token, std::vector<UniqueFd> fds) {  // NOLINT(performance-unnecessary-value-param)
    const auto fail = [&](int error) { tell({ForkEvent::Kind::failed, -1, error, 0, token}); };
    if (fds.size() != fds_of_a_worker) {
      return fail(EMFILE);
    }
    if (!has_one_thread()) {
      return fail(EDEADLK);  // the locks of the other threads would be held for ever in the child
    }
    const auto pid = ::fork();
    if (pid == 0) {
      run_worker(token, fds, me_, worker_main_);
    }
    if (pid < 0) {
      return fail(errno);
    }
    const auto pidfd = open_pidfd(pid);
    if (!pidfd) {
      const int error = errno;
      ::kill(pid, SIGKILL);
      return fail(error);
    }
    tokens_[pid] = token;
    const int carried[] = {pidfd.get()};
    tell({ForkEvent::Kind::forked, pid, 0, 0, token}, carried);
  }

  int socket_;
  WorkerMain worker_main_;
  pid_t me_ = ::getpid();
  UniqueFd signals_;
  std::map<pid_t, Token> tokens_;
};

/// stdin from nowhere (the user's input is the host's); no descriptor of the host but stdout and stderr is kept.
int arrange_descriptors(int socket) {
  const int high = ::fcntl(socket, F_DUPFD_CLOEXEC, 3);  // away from 0 to 2, should the host have closed those
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(null, 0);
  for (int fd : {1, 2}) {
    if (::fcntl(fd, F_GETFD) < 0) {
      ::dup2(null, fd);
    }
  }
  if (high != fork_server_socket) {
    ::dup3(high, fork_server_socket, O_CLOEXEC);
  }
  ::close_range(fork_server_socket + 1, ~0U, 0);
  return fork_server_socket;
}

}  // namespace

void reset_signals() {
  for (int number = 1; number < NSIG; ++number) {
    ::signal(number, SIG_DFL);  // SIGKILL, SIGSTOP and the C library's own refuse, which is right
  }
  ::signal(SIGPIPE, SIG_IGN);
}

void die_with_parent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(0);  // it died before the prctl
  }
}

void run_fork_server(int socket, pid_t host, WorkerMain worker_main) {
  die_with_parent(host);
  ::prctl(PR_SET_NAME, "troupe-forksrv");
  reset_signals();
  Server(arrange_descriptors(socket), worker_main).run();
}

}  // namespace troupe::node
