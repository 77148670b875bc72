// SPDX-License-Identifier: Apache-2.0
// The Node's thread and what others ask of it.
#include "actors/node/node_impl.hpp"

#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <troupe/error.hpp>

#include "actors/node/process_state.hpp"
#include "actors/node/threads.hpp"
#include "runtime/base/own_process.hpp"

namespace troupe::node {

namespace {

constexpr int token_shift = 3;  // room for Node::Impl::Watched below the token
constexpr std::uint64_t watched_mask = (1U << token_shift) - 1;
constexpr std::chrono::milliseconds exit_patience{1000};

/// Of a worker: stream, descriptor channel, stdout, stderr; the Node's ends first. Empty, with errno, when there are no
/// descriptors left; then none of them is kept.
std::optional<std::array<FdPair, 4>> make_ends() {
  std::array<FdPair, 4> ends;
  const bool made = (ends[0] = make_socketpair(SOCK_STREAM)) && (ends[1] = make_socketpair(SOCK_SEQPACKET)) &&
                    (ends[2] = make_log_pipe()) && (ends[3] = make_log_pipe());
  return made ? std::optional(std::move(ends)) : std::nullopt;
}

[[noreturn]] void throw_no_descriptors(int rank, int error) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  throw Error(ErrorCode::start_failed,
              fmt::format("cannot start the worker of rank {}: {}. Each worker takes 6 descriptors of this process (11 "
                          "while it starts); the limit is {} now: raise it (ulimit -n), or use fewer workers.",
                          rank, std::strerror(error), limit.rlim_cur),
              rank);
}

}  // namespace

Node::Impl::Impl()
    : owner_(::getpid()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      printer_([this] { wake(); }),
      death_watch_([this](Token token) {
        const Lock lock(mutex_);
        dying_.push_back(token);
        wake();
      }) {
  if (!epoll_ || !wake_ || !watch(wake_.get(), Watched::wake, 0, EPOLLIN)) {
    throw Error(ErrorCode::start_failed, fmt::format("cannot set up the process layer: {}. Raise the limit of "
                                                     "descriptors (ulimit -n).",
                                                     std::strerror(errno)));
  }
  // A fork of the program that init() was called in leaves that one its server, and starts another.
  if (auto early = std::exchange(process_state().early, {}); early && detail::is_this_process(early.host)) {
    adopt_server(std::move(early));
  }
  Lock lock(mutex_);  // the thread asks for its own id
  thread_ = start_thread("troupe-node", [this] { run(); });
}

Launched Node::Impl::launch(LaunchRequest request) {
  auto ends = make_ends();
  auto life_line = ends ? LifeLine::make() : LifeLine::Ends();
  if (!ends || !life_line) {
    throw_no_descriptors(request.rank, errno);
  }
  auto& [stream, descriptors, out, err] = *ends;
  WorkerRecord record{.request = std::move(request),
                      .output = WorkerOutput(std::move(out.first), std::move(err.first)),
                      .descriptors = std::move(descriptors.first),
                      .pidfd = UniqueFd(),
                      .early_signals = {}};
  record.output.set_log_file(record.request.log_file);
  std::vector<UniqueFd> fds;
  for (auto& pair : *ends) {
    fds.push_back(std::move(pair.second));
  }
  fds.push_back(std::move(life_line.for_worker));
  Lock lock(mutex_);
  ensure_server(lock);
  const auto token = next_token_++;
  death_watch_.add(token, life_line.line);
  workers_.emplace(token, std::move(record));
  forks_.push_back({token, std::move(fds)});
  flush_forks();
  return {token, stream.first.release()};
}

void Node::Impl::signal(Token token, int signal_number) {
  Lock lock(mutex_);
  if (const auto found = workers_.find(token); found != workers_.end()) {
    auto& record = found->second;
    if (exiting_) {
      end_with_program(found);
    } else if (record.pid < 0) {
      record.early_signals.push_back(signal_number);
      record.last_signal_sent = signal_number;
      if (signal_number == SIGKILL) {  // a fork server that does not even fork is ended
        record.dead_since = std::chrono::steady_clock::now();
        check_server_at(when_server_must_answer(record));
        wake();
      }
    } else {
      send_signal(token, record, signal_number);
    }
  }
  if (exiting_) {
    deliver(lock);  // the Node's thread does not any more
  }
}

pid_t Node::Impl::pid_of(Token token) {
  Lock lock(mutex_);
  const auto found = workers_.find(token);
  return found == workers_.end() ? -1 : found->second.pid;
}

void Node::Impl::set_rank(Token token, int rank) {
  Lock lock(mutex_);
  const auto found = workers_.find(token);
  if (found == workers_.end() || found->second.request.rank == rank) return;
  auto& record = found->second;
  record.request.rank = rank;
  if (record.pid < 0) return;
  record.output.read_pending(printer_);  // what it wrote before it wrote as another rank
  record.output.set_origin(rank, record.pid);
}

void Node::Impl::set_log_file(Token token, const std::filesystem::path& log_file) {
  Lock lock(mutex_);
  if (const auto found = workers_.find(token); found != workers_.end()) {
    auto& record = found->second;
    if (record.pid >= 0) {
      record.output.read_pending(printer_);  // what it wrote before belongs to the old file
    }
    record.output.set_log_file(log_file);
  }
}

void Node::Impl::drain(Token token, std::function<void()> done) {
  Lock lock(mutex_);
  if (const auto found = workers_.find(token); found != workers_.end() && found->second.pid >= 0) {
    found->second.output.read_pending(printer_);
    found->second.output.end_partial_lines(printer_);
  }
  printer_.call(std::move(done));
}

std::vector<std::string> Node::Impl::last_lines(Token token) {
  Lock lock(mutex_);
  if (const auto found = workers_.find(token); found != workers_.end()) {
    return found->second.output.last_lines();
  }
  const auto dead = std::find_if(dead_.begin(), dead_.end(), [&](const auto& worker) { return worker.token == token; });
  return dead == dead_.end() ? std::vector<std::string>{} : dead->last_lines;
}

void Node::Impl::forget_last_lines(Token token) {
  Lock lock(mutex_);
  if (const auto found = workers_.find(token); found != workers_.end() && found->second.pid >= 0) {
    found->second.output.read_pending(printer_);
    found->second.output.forget_last_lines();
  }
}

pid_t Node::Impl::fork_server_pid() {
  Lock lock(mutex_);
  return server_.pid;
}

void Node::Impl::at_exit() {
  Lock lock(mutex_);
  exiting_ = true;
  wake();
  if (!on_node_thread()) {  // a callback that runs now may finish, or uses what is about to be destroyed
    changed_.wait_for(lock, exit_patience, [&] { return parked_; });
  }
  auto server = std::exchange(server_, {});
  lock.unlock();
  end_fork_server(std::move(server), exit_patience);
  printer_.flush(exit_patience);
}

void Node::Impl::run() {
  Lock lock(mutex_);
  for (;;) {
    const int timeout = server_check_in();
    lock.unlock();
    epoll_event events[64];
    const int count = ::epoll_wait(epoll_.get(), events, 64, timeout);
    lock.lock();
    for (int i = 0; i < count; ++i) {
      handle(events[i].data.u64);
    }
    deliver(lock);
    find_causes();
    deliver(lock);
    check_server();
    if (exiting_) {
      park(lock);
    }
  }
}

void Node::Impl::handle(std::uint64_t key) {
  const auto what = static_cast<Watched>(key & watched_mask);
  const Token token = key >> token_shift;
  if (what == Watched::wake) {
    eventfd_t ignored = 0;
    ::eventfd_read(wake_.get(), &ignored);
    if (server_wanted_) {
      start_server();
    }
    tell_deaths();
    return resume_output();
  }
  if (what == Watched::server) {
    return handle_server();
  }
  const auto found = workers_.find(token);  // it may have ended earlier in the same batch
  if (found == workers_.end()) {
    return;
  }
  switch (what) {
    case Watched::descriptors:
      return relay_descriptor(token, found->second);
    case Watched::out:
      return read_output(found->second, WorkerOutput::Stream::out);
    case Watched::err:
      return read_output(found->second, WorkerOutput::Stream::err);
    default:
      break;
  }
  if (!found->second.lost_with_server) {  // the fork server reaps it, and says how it ended
    found->second.dead_since = std::chrono::steady_clock::now();
    return check_server_at(when_server_must_answer(found->second));
  }
  worker_ended(found, {ProcessEvent::Kind::signaled, found->second.pid, SIGKILL, killed_with_server_text});
}

void Node::Impl::deliver(Lock& lock) {
  const bool at_exit = exiting_;  // what is not delivered before is kept for those who ask then
  while (!deliveries_.empty() && exiting_ == at_exit) {
    {
      const auto next = std::move(deliveries_.front());
      deliveries_.pop_front();
      lock.unlock();
      if (next.call) {
        next.call(next.token, next.event);
      }
    }  // what the callback holds is freed without the lock, too
    lock.lock();
  }
}

// Somebody wants this worker gone while the program exits, and waits for its end.
void Node::Impl::end_with_program(Records::iterator worker) {
  const auto& record = worker->second;
  if (record.pidfd) {
    signal_pidfd(record.pidfd.get(), SIGKILL);
  }
  worker_ended(worker, {record.pid < 0 ? ProcessEvent::Kind::failed : ProcessEvent::Kind::signaled, record.pid, SIGKILL,
                        "ended with the program"});
}

void Node::Impl::park(Lock& lock) {
  for (auto next = workers_.begin(); next != workers_.end();) {
    const auto worker = next++;
    if (worker->second.last_signal_sent == SIGKILL) {
      end_with_program(worker);
    }
  }
  deliver(lock);
  parked_ = true;
  changed_.notify_all();
  lock.unlock();
  for (;;) {
    ::pause();  // not the end of the thread: the fork server would get its PDEATHSIG from that
  }
}

void Node::Impl::wake() { ::eventfd_write(wake_.get(), 1); }

bool Node::Impl::watch(int fd, Watched what, Token token, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token << token_shift | static_cast<std::uint64_t>(what);
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

// Once. A pidfd stays readable for ever.
bool Node::Impl::watch_end(Token token, const WorkerRecord& record) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLONESHOT;
  event.data.u64 = token << token_shift | static_cast<std::uint64_t>(Watched::pidfd);
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, record.pidfd.get(), &event) == 0 ||
         ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, record.pidfd.get(), &event) == 0;
}

// Before the close: a copy of the descriptor in a forked child would keep it in the set.
void Node::Impl::unwatch(int fd) {
  if (fd >= 0) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

}  // namespace troupe::node
