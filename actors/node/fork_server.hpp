// SPDX-License-Identifier: Apache-2.0
// The fork server: a single-threaded copy of this program whose only job is to fork workers and to reap them. It hears
// its host over one SOCK_SEQPACKET socket and ends when that closes.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/node/descriptors.hpp"
#include "actors/node/node.hpp"

namespace troupe::node {

/// Host to fork server. With `signal` 0: fork a worker, and five descriptors come along (stream, descriptor channel,
/// stdout, stderr, life line). Else: send this signal to the worker, for a host that could not receive its pidfd.
struct ForkRequest {
  Token token = 0;
  std::int32_t signal = 0;
  std::int32_t unused = 0;  // no padding with unknown bytes goes over the socket
};

/// Fork server to host. The worker's pidfd comes along with `forked`.
struct ForkEvent {
  enum class Kind : std::int32_t { hello, forked, exited, signaled, stopped, continued, failed };
  Kind kind = Kind::hello;
  std::int32_t pid = 0;
  std::int32_t value = 0;  ///< status, signal or errno
  std::int32_t unused = 0;
  Token token = 0;
};

/// The host's hold on its fork server.
struct ForkServer {
  pid_t pid = -1;
  UniqueFd pidfd;
  UniqueFd socket;
  pid_t host = ::getpid();  ///< who made it; a fork of that has nothing but copies of the descriptors
  explicit operator bool() const { return static_cast<bool>(socket); }
};

/// Forks it from this process, which must have one thread. Empty when that fails.
ForkServer fork_fork_server(WorkerMain worker_main);
/// Runs this program anew with a marker argument. Calling thread: it must outlive the server (PDEATHSIG belongs to it).
/// Throws Error(start_failed).
ForkServer exec_fork_server(const std::string& program_name, std::vector<std::string> environment);
/// Never returns if the arguments are those of exec_fork_server().
void serve_if_asked(int argc, char** argv, WorkerMain worker_main);
/// Ends the connection and reaps the process; kills it when it is not gone after `patience`. In a fork of its host:
/// closes the copies.
void end_fork_server(ForkServer server, std::chrono::milliseconds patience);

}  // namespace troupe::node
