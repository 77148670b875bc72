// SPDX-License-Identifier: Apache-2.0
#include "runtime/interrupts.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <troupe/error.hpp>

#include "actors/node/descriptors.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/make_thread.hpp"

namespace troupe {
namespace {

constexpr int handled[] = {SIGINT, SIGTERM};

std::atomic<bool> interrupts_enabled{false};
// The write end of the watcher's pipe: all that a signal handler may touch.
std::atomic<int> signal_pipe{-1};
std::atomic<int> handlers_at_work{0};
std::atomic<pid_t> host{-1};

void on_signal(int number) {
  if (::getpid() != host.load()) {  // a child that the program has forked: the run is not its own
    ::signal(number, SIG_DFL);
    ::raise(number);
    return;
  }
  const int saved = errno;
  handlers_at_work += 1;
  const auto byte = static_cast<char>(number);
  const int to = signal_pipe.load();
  // A full pipe holds plenty of signals already.
  if (to >= 0 && ::write(to, &byte, 1) < 0) errno = 0;
  handlers_at_work -= 1;
  errno = saved;
}

/// One thread that waits for signals while runs are active.
class Watcher {
public:
  void add(const std::shared_ptr<detail::Run>& run) {
    std::lock_guard lock(mutex_);
    if (!runs_.empty() && host != ::getpid()) return;  // those of the program that this one is a fork of
    if (runs_.empty()) begin();
    runs_.push_back(run);
  }

  void remove(const detail::Run* run) {
    std::thread finished;
    node::UniqueFd from;
    node::UniqueFd to;
    if (host != ::getpid()) return;
    {
      std::lock_guard lock(mutex_);
      std::erase_if(runs_, [run](const Entry& entry) { return entry.key == run; });
      if (!runs_.empty() || !thread_.joinable()) return;
      restore();
      finished = std::move(thread_);
      signal_pipe = -1;
      from = std::move(pipe_.first);
      to = std::move(pipe_.second);
    }
    const char end = 0;
    if (::write(to.get(), &end, 1) != 1) log_warning("the signal watcher could not be told to end");
    finished.join();
    while (handlers_at_work > 0) std::this_thread::yield();  // one may hold the number still, of what it is by then
  }

private:
  struct Entry {
    Entry(const std::shared_ptr<detail::Run>& run) : key(run.get()), weak(run) {}  // NOLINT
    const detail::Run* key;
    std::weak_ptr<detail::Run> weak;
    int received = 0;  // signals that came while it was active
  };

  void begin() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(ErrorCode::io, "no descriptors are left for the signal pipe: raise `ulimit -n`");
    node::FdPair pipe{node::UniqueFd(ends[0]), node::UniqueFd(ends[1])};
    ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
    thread_ = detail::make_thread("that waits for Ctrl-C", [this, from = ends[0]] { watch(from); });
    pipe_ = std::move(pipe);
    signal_pipe = ends[1];
    host = ::getpid();
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < std::size(handled); ++i) ::sigaction(handled[i], &action, &previous_[i]);
  }

  /// But for handlers that the program has installed during the run: those stay.
  void restore() const {
    for (std::size_t i = 0; i < std::size(handled); ++i) {
      struct sigaction current = {};
      ::sigaction(handled[i], nullptr, &current);
      if (current.sa_handler == on_signal) ::sigaction(handled[i], &previous_[i], nullptr);
    }
  }

  void watch(int from) {
    for (char byte = 0;;) {
      const auto count = ::read(from, &byte, 1);
      if (count < 0 && errno == EINTR) continue;
      if (count != 1 || byte == 0) return;
      const auto runs = count_signal();
      // The second one ends a run at once: one that cannot be ended so, together with the program.
      const bool all_obey = std::all_of(runs.begin(), runs.end(), [](const auto& active) {
        const auto& [run, received] = active;
        return received <= (run->spec.can_end_at_once || run->finished() ? 2 : 1);
      });
      if (!all_obey) {
        ::signal(byte, SIG_DFL);
        ::kill(::getpid(), byte);
        continue;
      }
      for (const auto& [run, received] : runs) {
        run->signal = byte;
        run->stop(engine::StopReason::interrupted);
      }
    }
  }

  /// The active runs, and how many signals have come for each.
  std::vector<std::pair<std::shared_ptr<detail::Run>, int>> count_signal() {
    std::lock_guard lock(mutex_);
    std::vector<std::pair<std::shared_ptr<detail::Run>, int>> active;
    for (auto& entry : runs_)
      if (auto run = entry.weak.lock()) active.emplace_back(std::move(run), ++entry.received);
    return active;
  }

  std::mutex mutex_;
  std::vector<Entry> runs_;
  std::thread thread_;
  node::FdPair pipe_;
  struct sigaction previous_[std::size(handled)] = {};
};

Watcher& watcher() {
  static auto* instance = new Watcher;  // never destroyed: a signal may come at any time
  return *instance;
}

}  // namespace

void enable_interrupts(bool enabled) { interrupts_enabled = enabled; }

std::shared_ptr<void> stop_on_interrupt(const std::shared_ptr<detail::Run>& run) {
  if (!interrupts_enabled) return nullptr;
  watcher().add(run);
  return {run.get(), [](void* key) { watcher().remove(static_cast<detail::Run*>(key)); }};
}

}  // namespace troupe
