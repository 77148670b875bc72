// SPDX-License-Identifier: Apache-2.0
#include "test/node/hosts.hpp"

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <troupe/error.hpp>
#include <utility>

#include "actors/node/node.hpp"
#include "test/node/lines.hpp"

namespace troupe::test {

namespace {

using node::Node;
using node::ProcessEvent;

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void say_pids(const ProcessEvent& event) { say(fmt::format("{} {}", Node::instance().fork_server_pid(), event.pid)); }

/// Starts a worker and gives its first event.
node::Launched launch(std::promise<ProcessEvent>& first) {
  auto told = std::make_shared<bool>(false);
  return Node::instance().launch({.on_event = [&first, told](auto, const auto& event) {
    if (!std::exchange(*told, true)) {
      first.set_value(event);
    }
  }});
}

int exit_main() {
  std::promise<ProcessEvent> first;
  launch(first);
  say_pids(first.get_future().get());
  std::exit(7);
}

int wait_for_ever() {
  std::promise<ProcessEvent> first;
  launch(first);
  say_pids(first.get_future().get());
  for (;;) {
    ::pause();
  }
}

[[noreturn]] void wait_for_exit() {
  for (;;) {
    ::pause();
  }
}

/// Ends its worker when statics are destroyed, behind the end of the Node, and waits for that.
struct LateOwner {
  ~LateOwner() {
    Node::instance().signal(token, SIGTERM);
    say(ended.get_future().get().text);
  }
  node::Token token = 0;
  std::promise<ProcessEvent> ended;
};

int exit_before_static() {
  static LateOwner owner;
  std::promise<ProcessEvent> forked;
  owner.token = Node::instance()
                    .launch({.on_event =
                                 [&forked](auto, const auto& event) {
                                   (event.is_end() ? owner.ended : forked).set_value(event);
                                 }})
                    .token;
  say_pids(forked.get_future().get());
  std::exit(7);
}

int exit_in_event() {
  Node::instance().launch({.on_event = [](auto, const auto& event) {
    say_pids(event);
    std::exit(7);
  }});
  wait_for_exit();
}

int exit_in_drain() {
  std::promise<ProcessEvent> first;
  const auto worker = launch(first);
  say_pids(first.get_future().get());
  Node::instance().drain(worker.token, [] { std::exit(7); });
  wait_for_exit();
}

/// A stopped fork server does not see that its socket closes.
int exit_with_stopped_server() {
  std::promise<ProcessEvent> first;
  launch(first);
  say_pids(first.get_future().get());
  ::kill(Node::instance().fork_server_pid(), SIGSTOP);
  std::exit(7);
}

/// exit() in a plain fork of the host must leave the fork server alone.
int exit_in_own_fork() {
  std::promise<ProcessEvent> first;
  launch(first);
  const auto event = first.get_future().get();
  const auto server = Node::instance().fork_server_pid();
  const auto child = ::fork();
  if (child == 0) {
    std::exit(0);
  }
  ::waitpid(child, nullptr, 0);
  std::promise<ProcessEvent> second;
  launch(second);
  const bool same =
      second.get_future().get().kind == ProcessEvent::Kind::forked && Node::instance().fork_server_pid() == server;
  say(same ? "still there" : "lost");
  say_pids(event);
  return 7;
}

int without_worker() { return 7; }

int without_init() {
  try {
    Node::instance();
  } catch (const Error& error) {
    say(fmt::format("{} {}", error.code() == ErrorCode::invalid_state ? "invalid_state" : "other", error.what()));
  }
  return 7;
}

/// What a worker says of its surroundings.
int say_surroundings() {
  std::promise<ProcessEvent> first;
  const auto worker = launch(first);
  std::string answer;
  if (write_line(worker.stream, "surroundings") && read_line(worker.stream, answer)) {
    say(answer);
  }
  return 7;
}

/// A fork server that cannot serve is told by an event or by an Error, whichever comes first.
int say_why_not() {
  try {
    std::promise<ProcessEvent> first;
    launch(first);
    say(first.get_future().get().text);
  } catch (const Error& error) {
    say(error.what());
  }
  return 7;
}

}  // namespace

int play_host(std::string_view name) {
  const std::map<std::string_view, int (*)()> hosts = {
      {"exit_main", exit_main},
      {"exit_before_static", exit_before_static},
      {"exit_in_event", exit_in_event},
      {"exit_in_drain", exit_in_drain},
      {"exit_with_stopped_server", exit_with_stopped_server},
      {"exit_in_own_fork", exit_in_own_fork},
      {"wait_for_ever", wait_for_ever},
      {"without_worker", without_worker},
      {"without_init", without_init},
      {"say_surroundings", say_surroundings},
      {"say_why_not", say_why_not},
  };
  return hosts.at(name)();
}

}  // namespace troupe::test
