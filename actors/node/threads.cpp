// SPDX-License-Identifier: Apache-2.0
#include "actors/node/threads.hpp"

#include <pthread.h>
#include <sys/stat.h>

#include <csignal>
#include <utility>

#include "runtime/base/make_thread.hpp"
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
  auto thread = detail::make_thread(name, [body = std::move(body)] {
    detail::take_short_turns();
    body();
  });
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

bool has_one_thread() {
  struct stat tasks{};
  return ::stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 3;  // 2 and one for each thread
}

}  // namespace troupe::node
