// SPDX-License-Identifier: Apache-2.0
#include "bench/torch/recovery_injector.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "bench/harness.hpp"

namespace troupe::bench {
namespace {

constexpr int calm_rounds = 8;

/// Waits until the process is gone.
void await_end(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  ::poll(&entry, 1, 10'000);
  ::close(pidfd);
}

constexpr const char* throw_word = "throw";
constexpr const char* hang_word = "hang";
/// When somebody did what he was told.
constexpr const char* done_word = "done";

bool told_to(const std::filesystem::path& folder, const char* word) {
  std::error_code ignored;
  if (!std::filesystem::remove(folder / word, ignored)) return false;
  std::ofstream(folder / done_word) << now_ns();
  return true;
}

void tell_to(const std::filesystem::path& folder, const char* word) {
  std::filesystem::remove(folder / done_word);
  std::ofstream(folder / word) << "x";
}

}  // namespace

void hang_other_threads() {
  struct sigaction action{};
  action.sa_handler = [](int) {
    for (;;) ::pause();
  };
  ::sigaction(SIGUSR1, &action, nullptr);
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const auto id = static_cast<pid_t>(std::stoi(task.path().filename()));
    if (id != self && id != ::getpid()) ::syscall(SYS_tgkill, ::getpid(), id, SIGUSR1);
  }
}

Json step_report(std::int64_t step) { return {{"at", now_ns()}, {"pid", ::getpid()}, {"step", step}}; }

bool told_to_throw(const std::filesystem::path& folder) { return told_to(folder, throw_word); }
bool told_to_hang(const std::filesystem::path& folder) { return told_to(folder, hang_word); }
bool told_to_end(const std::filesystem::path& folder) { return std::filesystem::exists(folder / "end"); }

void Injector::handle_result(const std::vector<Json>& results, const ResultInfo&) {
  const auto with = [&](auto&& fits) { return std::all_of(results.begin(), results.end(), fits); };
  // Rounds that only the lost worker had not reported yet come without it: they are no new steps of all.
  workers_ = std::max(workers_, results.size());
  const bool is_whole = results.size() == workers_;
  if (!pending_) {
    if (is_whole && injected_ < injections_ && ++calm_ >= calm_rounds) inject(results);
    return;
  }
  const auto since = time_of_fault();
  if (since == 0 || !is_whole || !with([&](const Json& one) { return one["at"] > since && one["pid"] != victim_; })) {
    for (const auto& one : results) step_ = std::max(step_, one["step"].get<std::int64_t>());
    return;
  }
  std::int64_t last = 0;
  for (const auto& one : results) last = std::max(last, one["at"].get<std::int64_t>());
  recovered_.push_back(static_cast<double>(last - since) / 1e6);
  steps_lost_.push_back(
      static_cast<double>(std::max<std::int64_t>(step_ + 1 - results[0]["step"].get<std::int64_t>(), 0)));
  pending_ = false;
  calm_ = 0;
  if (injected_ == injections_) std::ofstream(folder_ / "end") << "x";
}

void Injector::inject(const std::vector<Json>& results) {
  const auto& chosen = results[static_cast<std::size_t>(rank_ >= 0 ? rank_ : injected_) % results.size()];
  injected_ += 1;
  pending_ = true;
  step_ = results[0]["step"];
  if (fault_ == Fault::exception)
    tell_to(folder_, throw_word);
  else
    harm(chosen["pid"]);
}

/// Returns when the victim's process is gone.
void Injector::harm(pid_t victim) {
  victim_ = victim;
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, victim, 0));
  since_ = now_ns();
  if (fault_ == Fault::hang)
    tell_to(folder_, hang_word);
  else
    ::kill(victim, fault_ == Fault::kill ? SIGKILL : SIGSTOP);
  faults_.push_back(since_);
  await_end(pidfd);
  gone_.push_back(ms_since(time_of_fault()));
}

std::int64_t Injector::time_of_fault() const {
  if (fault_ == Fault::kill || fault_ == Fault::stop) return since_;
  std::int64_t time = 0;
  std::ifstream(folder_ / done_word) >> time;
  return time;
}

}  // namespace troupe::bench
