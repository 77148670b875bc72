// SPDX-License-Identifier: Apache-2.0
// The Node and its workers: their events, output and descriptors.
#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>

#include "actors/node/descriptor_channel.hpp"
#include "actors/node/dying_status.hpp"
#include "actors/node/node_impl.hpp"
#include "actors/node/signal_names.hpp"
#include "runtime/base/settings.hpp"

namespace troupe::node {

namespace {

/// All workers that a trainer may have: when they die together, the group asks for the words of the first one last.
constexpr std::size_t max_dead = detail::max_workers;

std::string signaled_text(int signal_number, const WorkerRecord& record) {
  return signal_number == record.last_signal_sent ? killed_by_us_text(signal_number) : killed_text(signal_number);
}

/// Empty if that is not known yet.
std::string dying_text(const WorkerRecord& record) {
  const auto status = dying_status(record.pid, record.pidfd.get());
  if (!status) {
    return "";
  }
  if (record.lost_with_server) {
    return killed_with_server_text;
  }
  return WIFSIGNALED(*status) ? signaled_text(WTERMSIG(*status), record) : exited_text(WEXITSTATUS(*status));
}

std::string ended_text(const ForkEvent& event, const WorkerRecord& record) {
  switch (event.kind) {
    case ForkEvent::Kind::exited:
      return exited_text(event.value);
    case ForkEvent::Kind::failed:
      return fork_failed_text(event.value);
    case ForkEvent::Kind::stopped:
      return fmt::format("stopped by {}", signal_name(event.value));
    case ForkEvent::Kind::continued:
      return "continued";
    case ForkEvent::Kind::signaled:
      return signaled_text(event.value, record);
    default:
      return "";
  }
}

ProcessEvent::Kind to_public(ForkEvent::Kind kind) {
  switch (kind) {
    case ForkEvent::Kind::forked:
      return ProcessEvent::Kind::forked;
    case ForkEvent::Kind::exited:
      return ProcessEvent::Kind::exited;
    case ForkEvent::Kind::signaled:
      return ProcessEvent::Kind::signaled;
    case ForkEvent::Kind::stopped:
      return ProcessEvent::Kind::stopped;
    case ForkEvent::Kind::continued:
      return ProcessEvent::Kind::continued;
    default:
      return ProcessEvent::Kind::failed;
  }
}

}  // namespace

void Node::Impl::handle_server() {
  if (!server_) {
    return;  // lost earlier in the same batch
  }
  flush_forks();
  for (;;) {
    ForkEvent event;
    auto received = receive_message(server_.socket.get(), event, MSG_DONTWAIT);
    if (received.size < 0 && errno == EAGAIN) {
      return;
    }
    if (received.size != sizeof event) {
      return server_lost();
    }
    handle_server_event(event, std::move(received.fds));
  }
}

void Node::Impl::handle_server_event(const ForkEvent& event, std::vector<UniqueFd> fds) {
  server_heard_ = std::chrono::steady_clock::now();
  if (event.kind == ForkEvent::Kind::hello) {
    server_said_hello_ = true;
    return;
  }
  const auto worker = workers_.find(event.token);
  if (worker == workers_.end()) {
    return;
  }
  auto& record = worker->second;
  ProcessEvent told{to_public(event.kind), event.pid, event.value, ended_text(event, record)};
  if (event.kind == ForkEvent::Kind::forked) {
    worker_forked(event.token, record, event.pid, fds.empty() ? UniqueFd() : std::move(fds.front()));
  }
  if (told.is_end()) {
    worker_ended(worker, std::move(told));
  } else {
    deliver_later(event.token, record, std::move(told));
  }
}

void Node::Impl::worker_forked(Token token, WorkerRecord& record, pid_t pid, UniqueFd pidfd) {
  record.pid = pid;
  record.pidfd = std::move(pidfd);
  record.dead_since.reset();  // was it to be killed before: it is now
  record.output.set_origin(record.request.rank, pid);
  if (!output_paused_) {
    watch_output(token, record);
  }
  watch(record.descriptors.get(), Watched::descriptors, token, EPOLLIN);
  for (const int signal_number : std::exchange(record.early_signals, {})) {
    send_signal(token, record, signal_number);
  }
}

void Node::Impl::send_signal(Token token, WorkerRecord& record, int signal_number) {
  record.last_signal_sent = signal_number;
  if (record.pidfd) {
    signal_pidfd(record.pidfd.get(), signal_number);
    if (signal_number == SIGKILL && !record.lost_with_server) {
      watch_end(token, record);
    }
  } else if (server_) {  // we were out of descriptors when it was forked; the server knows which process it is
    send_message(server_.socket.get(), ForkRequest{token, signal_number}, {}, MSG_DONTWAIT);
  }
}

void Node::Impl::deliver_later(Token token, const WorkerRecord& record, ProcessEvent event) {
  deliveries_.push_back({record.request.on_event, token, std::move(event)});
}

// A process that the fork server has not told of yet is not known to anybody; its end will be.
void Node::Impl::tell_deaths() {
  for (const auto token : std::exchange(dying_, {})) {
    if (const auto worker = workers_.find(token); worker != workers_.end() && worker->second.pid >= 0) {
      deliver_later(token, worker->second, {ProcessEvent::Kind::dying, worker->second.pid, 0, ""});
      uncertain_.push_back(token);
    }
  }
}

// Behind the news itself: to look takes longer, and others wait in collectives of the dead.
void Node::Impl::find_causes() {
  if (uncertain_.empty()) {
    return;
  }
  handle_server();  // its own end is the cause, if it has come
  for (const auto token : std::exchange(uncertain_, {})) {
    const auto worker = workers_.find(token);
    if (worker == workers_.end()) {
      continue;
    }
    auto& record = worker->second;
    auto cause = dying_text(record);
    if (cause.empty()) {
      continue;
    }
    record.output.read_pending(printer_);  // its last words, for who asks for them
    record.output.end_partial_lines(printer_);
    unwatch(record.descriptors.get());
    record.descriptors.reset();  // what is sent to its rank is for its successor
    deliver_later(token, record, {ProcessEvent::Kind::dying, record.pid, 0, std::move(cause)});
  }
}

// All that it wrote is in its pipes by now. They are closed here even if a grandchild holds the other ends: its output
// has no rank any more.
void Node::Impl::worker_ended(Records::iterator worker, ProcessEvent event) {
  auto node = workers_.extract(worker);
  const auto token = node.key();
  auto& record = node.mapped();
  record.output.read_pending(printer_);
  for (const auto stream : WorkerOutput::streams) {
    unwatch(record.output.fd(stream));
    record.output.close(stream, printer_);
  }
  unwatch(record.descriptors.get());
  unwatch(record.pidfd.get());
  death_watch_.remove(token);
  dead_.push_back({token, record.output.last_lines()});
  if (dead_.size() > max_dead) {
    dead_.pop_front();
  }
  deliveries_.push_back({std::move(record.request.on_event), token, std::move(event)});
}

void Node::Impl::relay_descriptor(Token token, WorkerRecord& from) {
  DescriptorHeader header;
  const auto received = receive_message(from.descriptors.get(), header, MSG_DONTWAIT);
  if (received.size < 0 && errno == EAGAIN) {
    return;
  }
  if (received.size != sizeof header) {
    unwatch(from.descriptors.get());
    from.descriptors.reset();
    return;
  }
  const auto* to = find_rank(from.request.group, header.peer);
  std::vector<int> fds;
  for (const auto& fd : received.fds) {
    fds.push_back(fd.get());
  }
  const int to_rank = header.peer;
  header.peer = from.request.rank;
  if (to == nullptr || !send_message(to->descriptors.get(), header, fds, MSG_DONTWAIT)) {
    printer_.print({stderr,
                    fmt::format("troupe: a descriptor that rank {} (token {}) sent to rank {} was dropped: {}.\n",
                                from.request.rank, token, to_rank,
                                to == nullptr ? "that rank has no process" : "that rank does not take its descriptors"),
                    {},
                    nullptr});
  }
}

WorkerRecord* Node::Impl::find_rank(std::uint64_t group, int rank) {
  WorkerRecord* newest = nullptr;  // a replacement may be there before the end of the old one is known
  Token newest_token = 0;
  for (auto& [token, record] : workers_) {
    const bool fits = record.request.group == group && record.request.rank == rank && record.descriptors;
    if (fits && token > newest_token) {
      newest = &record;
      newest_token = token;
    }
  }
  return newest;
}

void Node::Impl::read_output(WorkerRecord& record, WorkerOutput::Stream stream) {
  if (output_paused_ || record.output.fd(stream) < 0) {
    return;  // an event from before the pause, in the same batch
  }
  const auto result = record.output.read_some(stream, printer_);
  if (!result.open) {
    unwatch(record.output.fd(stream));
    record.output.close(stream, printer_);
  }
  if (result.printer_full) {
    pause_output();
  }
}

void Node::Impl::watch_output(Token token, WorkerRecord& record) {
  for (const auto stream : WorkerOutput::streams) {
    if (const int fd = record.output.fd(stream); fd >= 0) {
      watch(fd, stream == WorkerOutput::Stream::out ? Watched::out : Watched::err, token, EPOLLIN);
    }
  }
}

// The pipes fill up and the workers wait in their writes, until the printer has room. Everything else goes on.
void Node::Impl::pause_output() {
  output_paused_ = true;
  for (auto& [token, record] : workers_) {
    for (const auto stream : WorkerOutput::streams) {
      unwatch(record.output.fd(stream));
    }
  }
}

void Node::Impl::resume_output() {
  if (!output_paused_ || printer_.full()) {
    return;
  }
  output_paused_ = false;
  for (auto& [token, record] : workers_) {
    if (record.pid >= 0) {
      watch_output(token, record);
    }
  }
}

}  // namespace troupe::node
