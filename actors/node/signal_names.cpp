// SPDX-License-Identifier: Apache-2.0
#include "actors/node/signal_names.hpp"

#include <fmt/core.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

namespace troupe::node {

namespace {

std::string_view likely_cause(int signal_number) {
  switch (signal_number) {
    case SIGKILL:
      return " (out of memory?)";
    case SIGSEGV:
      return " (crash, or stack overflow?)";
    case SIGABRT:
      return " (abort() or an uncaught exception)";
    case SIGBUS:
      return " (bad memory access, or is /dev/shm or a mapped file's disk full?)";
    case SIGFPE:
      return " (integer division by zero?)";
    case SIGILL:
      return " (built for another CPU?)";
    case SIGXCPU:
      return " (limit of CPU time, ulimit -t)";
    case SIGXFSZ:
      return " (limit of file size, ulimit -f)";
    case SIGSYS:
      return " (system call refused by a sandbox?)";
    default:
      return "";
  }
}

std::string_view fork_advice(int error) {
  switch (error) {
    case EAGAIN:
      return "the limit of processes is reached (ulimit -u, or pids.max of the container): raise it or use "
             "fewer workers";
    case ENOMEM:
      return "memory is short: use fewer workers, or allow overcommit (vm.overcommit_memory)";
    case EMFILE:
    case ENFILE:
      return "raise the limit of descriptors (ulimit -n) or use fewer workers";
    default:
      return "";
  }
}

}  // namespace

std::string signal_name(int signal_number) {
  const char* name = ::sigabbrev_np(signal_number);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal_number);
}

std::string killed_text(int signal_number) {
  return fmt::format("killed by {}{}", signal_name(signal_number), likely_cause(signal_number));
}

std::string killed_by_us_text(int signal_number) {
  return fmt::format("killed by {} (sent by troupe)", signal_name(signal_number));
}

std::string exited_text(int status) { return fmt::format("exited with status {}", status); }

std::string fork_failed_text(int error) {
  if (error == EDEADLK) {  // our own sign for it, see fork_server.cpp
    return "could not be forked: the fork server has more than one thread. A global object, a library or code before "
           "troupe::init() starts threads; call troupe::init() in the first line of main() and start threads after it";
  }
  const auto advice = fork_advice(error);
  return fmt::format("could not be forked: {}{}{}", std::strerror(error), advice.empty() ? "" : "; ", advice);
}

}  // namespace troupe::node
