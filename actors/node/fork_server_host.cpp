// SPDX-License-Identifier: Apache-2.0
// How the host makes its fork server, and how it ends it.
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string_view>
#include <troupe/error.hpp>

#include "actors/node/fork_server.hpp"
#include "actors/node/fork_server_process.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/own_process.hpp"

namespace troupe::node {

namespace {

constexpr const char* marker = "--troupe-fork-server";

std::vector<char*> to_pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& text : strings) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

/// The attributes and file actions of posix_spawn.
class SpawnSetup {
public:
  explicit SpawnSetup(int socket) {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, socket, fork_server_socket);
    ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, fork_server_socket + 1);
    sigset_t all;
    sigset_t none;
    sigfillset(&all);
    sigemptyset(&none);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  ~SpawnSetup() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

[[noreturn]] void throw_no_server(int error) {
  throw Error(ErrorCode::start_failed,
              fmt::format("cannot start the fork server, which makes the worker processes: {}. Check the limits of "
                          "processes (ulimit -u) and descriptors (ulimit -n), and that /proc is mounted.",
                          std::strerror(error)));
}

bool is_seqpacket_socket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

}  // namespace

ForkServer fork_fork_server(WorkerMain worker_main) {
  auto ends = make_socketpair(SOCK_SEQPACKET);
  if (!ends) {
    return {};
  }
  std::cout.flush();  // or the copy would print it again
  std::fflush(nullptr);
  const auto host = ::getpid();
  const auto pid = ::fork();
  if (pid == 0) {
    ends.first.reset();
    ::setsid();  // a Ctrl-C in the terminal is for the host alone
    run_fork_server(ends.second.get(), host, worker_main);
  }
  if (pid < 0) {
    return {};
  }
  return {pid, open_pidfd(pid), std::move(ends.first)};
}

ForkServer exec_fork_server(const std::string& program_name, std::vector<std::string> environment) {
  auto ends = make_socketpair(SOCK_SEQPACKET);
  if (!ends) {
    throw_no_server(errno);
  }
  std::vector<std::string> arguments = {program_name, marker, std::to_string(::getpid())};
  const SpawnSetup setup(ends.second.get());
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &setup.actions, &setup.attributes,
                                  to_pointers(arguments).data(), to_pointers(environment).data());
  if (error != 0) {
    throw_no_server(error);
  }
  return {pid, open_pidfd(pid), std::move(ends.first)};
}

void serve_if_asked(int argc, char** argv, WorkerMain worker_main) {
  if (argc != 3 || std::string_view(argv[1]) != marker) {
    return;
  }
  const std::string_view text = argv[2];
  pid_t host = 0;
  std::from_chars(text.data(), text.data() + text.size(), host);
  if (!is_seqpacket_socket(fork_server_socket)) {
    log_error("{} is for the program's own use: it starts its fork server with it", marker);
    ::_exit(2);
  }
  run_fork_server(fork_server_socket, host, worker_main);
}

void end_fork_server(ForkServer server, std::chrono::milliseconds patience) {
  if (server.pid < 0 || !detail::is_this_process(server.host)) {
    return;
  }
  ::shutdown(server.socket.get(), SHUT_RDWR);  // a fork of the program may hold a copy open
  server.socket.reset();
  if (!server.pidfd) {  // out of descriptors when it was made: PDEATHSIG and the closed socket end it all the same
    ::waitpid(server.pid, nullptr, WNOHANG);
    return;
  }
  pollfd entry{server.pidfd.get(), POLLIN, 0};
  if (::poll(&entry, 1, static_cast<int>(patience.count())) <= 0) {
    signal_pidfd(server.pidfd.get(), SIGKILL);
  }
  siginfo_t info;
  ::waitid(P_PIDFD, static_cast<id_t>(server.pidfd.get()), &info, WEXITED);
}

}  // namespace troupe::node
