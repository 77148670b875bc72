// SPDX-License-Identifier: Apache-2.0
#include "actors/node/threads.hpp"

#include <fmt/core.h>
#include <pthread.h>
#include <sys/stat.h>

#include <csignal>
#include <system_error>
#include <troupe/error.hpp>

#include "runtime/base/thread_turns.hpp"

namespace troupe::node {

std::thread start_thread(const char* name, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // a new thread inherits the mask: no moment without it
  struct Restore {
    const sigset_t& mask;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } restore{before};
  try {
    std::thread thread([body = std::move(body)] {
      detail::take_short_turns();
      body();
    });
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::start_failed,
                fmt::format("cannot start the thread {}: {}. Raise the limit of threads (ulimit -u, or pids.max of the "
                            "container).",
                            name, error.what()));
  }
}

bool has_one_thread() {
  struct stat tasks{};
  return ::stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 3;  // 2 and one for each thread
}

}  // namespace troupe::node
