// SPDX-License-Identifier: Apache-2.0
// The Node and its fork server: had at need, fed with requests, replaced after its death.
#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <troupe/error.hpp>

#include "actors/node/node_impl.hpp"
#include "actors/node/process_state.hpp"
#include "actors/node/signal_names.hpp"

namespace troupe::node {

namespace {

const char* lost_before_fork_text(bool said_hello) {
  return said_hello ? "could not be forked: the fork server died"
                    : "could not be forked: the fork server ended before it could serve. It is this program, run anew "
                      "up to troupe::init(): call troupe::init(argc, argv) in the first line of main(), and do not end "
                      "the program before it";
}

}  // namespace

// The server must be a child of the Node's thread, which lives as long as it may; others wait for that thread.
void Node::Impl::ensure_server(Lock& lock) {
  if (server_ && !exiting_) {
    return;
  }
  server_wanted_ = true;
  if (on_node_thread() && !exiting_) {
    start_server();
  } else {
    wake();
    // Not "until it is there": one that dies at once may be gone again when this thread looks.
    changed_.wait(lock, [&, before = server_attempts_] { return server_attempts_ != before || exiting_; });
  }
  if (!server_ || exiting_) {  // while the program exits nobody would hear of the worker
    throw Error(ErrorCode::start_failed, exiting_ ? "no worker can be started while the program exits" : server_error_);
  }
}

void Node::Impl::start_server() {
  server_wanted_ = false;
  ++server_attempts_;
  if (!server_) {
    try {
      adopt_server(exec_fork_server(process_state().program_name, process_state().environment));
    } catch (const Error& error) {
      server_error_ = error.what();
    }
  }
  changed_.notify_all();
}

void Node::Impl::adopt_server(ForkServer server) {
  if (!watch(server.socket.get(), Watched::server, 0, EPOLLIN)) {
    end_fork_server(std::move(server), std::chrono::milliseconds(0));
    throw Error(ErrorCode::start_failed,
                "cannot watch the fork server: the system's limit of epoll watches is reached "
                "(/proc/sys/fs/epoll/max_user_watches)");
  }
  server_ = std::move(server);
  server_said_hello_ = false;
  server_heard_ = std::chrono::steady_clock::now();
  watching_server_room_ = false;
}

// The workers die by PDEATHSIG; the signal is sent here as well, since it is certain. Their ends are told when their
// pidfds say so.
void Node::Impl::server_lost() {
  unwatch(server_.socket.get());
  end_fork_server(std::exchange(server_, {}), std::chrono::milliseconds(0));
  server_error_ = fmt::format("a worker {}", lost_before_fork_text(server_said_hello_));
  forks_.clear();
  std::vector<Token> over;
  for (auto& [token, record] : workers_) {
    if (record.pid < 0 || !record.pidfd) {
      over.push_back(token);
      continue;
    }
    record.lost_with_server = true;
    signal_pidfd(record.pidfd.get(), SIGKILL);
    if (!watch_end(token, record)) {
      over.push_back(token);
    }
  }
  using Kind = ProcessEvent::Kind;
  for (const auto token : over) {
    const auto worker = workers_.find(token);
    const auto pid = worker->second.pid;
    worker_ended(worker, pid < 0 ? ProcessEvent{Kind::failed, -1, 0, lost_before_fork_text(server_said_hello_)}
                                 : ProcessEvent{Kind::signaled, pid, SIGKILL, killed_with_server_text});
  }
}

// One that is still loading its libraries has other workers to start than the one that was killed.
std::chrono::steady_clock::time_point Node::Impl::when_server_must_answer(const WorkerRecord& killed) const {
  return std::max(*killed.dead_since, server_heard_) + (server_said_hello_ ? server_patience : server_start_patience);
}

void Node::Impl::check_server_at(std::chrono::steady_clock::time_point time) {
  server_check_ = server_check_ ? std::min(*server_check_, time) : time;
}

/// Milliseconds for epoll_wait.
int Node::Impl::server_check_in() const {
  if (!server_check_) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*server_check_ - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

// Its death is told like any other, and the ends of its workers with it.
void Node::Impl::check_server() {
  const auto now = std::chrono::steady_clock::now();
  if (!server_check_ || now < *server_check_) {
    return;
  }
  server_check_.reset();
  for (const auto& [token, record] : workers_) {
    if (!record.dead_since || record.lost_with_server) {
      continue;
    }
    const auto due = when_server_must_answer(record);
    if (now >= due) {
      signal_pidfd(server_.pidfd.get(), SIGKILL);
      return;
    }
    check_server_at(due);
  }
}

void Node::Impl::flush_forks() {
  while (!forks_.empty()) {
    const auto& next = forks_.front();
    std::vector<int> fds;
    for (const auto& fd : next.fds) {
      fds.push_back(fd.get());
    }
    if (!send_message(server_.socket.get(), ForkRequest{next.token}, fds, MSG_DONTWAIT)) {
      break;
    }
    forks_.pop_front();
  }
  // Whatever the reason: when it is that the server died, the end of its socket is told as well, and nothing hangs.
  watch_server_room(!forks_.empty());
}

void Node::Impl::watch_server_room(bool wanted) {
  if (wanted == watching_server_room_) {
    return;
  }
  watching_server_room_ = wanted;
  epoll_event event{};
  event.events = EPOLLIN | (wanted ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
  event.data.u64 = static_cast<std::uint64_t>(Watched::server);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, server_.socket.get(), &event);
}

}  // namespace troupe::node
