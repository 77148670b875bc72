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

/// Starts a worker and gives its first event. Later ones may come until the program has ended.
struct Started {
  node::Launched worker;
  std::future<ProcessEvent> first;
};
Started launch() {
  auto first = std::make_shared<std::promise<ProcessEvent>>();
  auto future = first->get_future();
  return {Node::instance().launch({.on_event =
                                       [first, told = std::make_shared<bool>(false)](auto, const auto& event) {
                                         if (!std::exchange(*told, true)) {
                                           first->set_value(event);
                                         }
                                       }}),
          std::move(future)};
}

int exit_main() {
  say_pids(launch().first.get());
  std::exit(7);
}

int wait_for_ever() {
  say_pids(launch().first.get());
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
  auto started = launch();
  say_pids(started.first.get());
  Node::instance().drain(started.worker.token, [] { std::exit(7); });
  wait_for_exit();
}

/// A stopped fork server does not see that its socket closes.
int exit_with_stopped_server() {
  say_pids(launch().first.get());
  ::kill(Node::instance().fork_server_pid(), SIGSTOP);
  std::exit(7);
}

/// exit() in a plain fork of the host must leave the fork server alone.
int exit_in_own_fork() {
  const auto event = launch().first.get();
  const auto server = Node::instance().fork_server_pid();
  const auto child = ::fork();
  if (child == 0) {
    std::exit(0);
  }
  ::waitpid(child, nullptr, 0);
  const bool same =
      launch().first.get().kind == ProcessEvent::Kind::forked && Node::instance().fork_server_pid() == server;
  say(same ? "still there" : "lost");
  say_pids(event);
  return 7;
}

/// It began without a stdin and a stderr: whatever is in their places, it is no way to the fork server.
int print_into_closed_streams() {
  const auto event = launch().first.get();
  const auto server = Node::instance().fork_server_pid();
  for (const int stream : {STDIN_FILENO, STDERR_FILENO}) {
    if (::write(stream, "x\n", 2) != 2) {
      say("no stream");
    }
  }
  const bool same =
      launch().first.get().kind == ProcessEvent::Kind::forked && Node::instance().fork_server_pid() == server;
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
  auto started = launch();
  std::string answer;
  if (write_line(started.worker.stream, "surroundings") && read_line(started.worker.stream, answer)) {
    say(answer);
  }
  return 7;
}

/// A fork server that cannot serve is told by an event or by an Error, whichever comes first.
int say_why_not() {
  try {
    say(launch().first.get().text);
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
      {"print_into_closed_streams", print_into_closed_streams},
      {"wait_for_ever", wait_for_ever},
      {"without_worker", without_worker},
      {"without_init", without_init},
      {"say_surroundings", say_surroundings},
      {"say_why_not", say_why_not},
  };
  return hosts.at(name)();
}

}  // namespace troupe::test
