// SPDX-License-Identifier: Apache-2.0
#include "test/node/worker_commands.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <troupe/error.hpp>

#include "actors/node/descriptor_channel.hpp"
#include "test/node/lines.hpp"
#include "test/support/memory.hpp"

namespace troupe::test {

namespace {

using Argument = const std::string&;

std::string open_descriptors() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    std::error_code gone;  // the iterator's own descriptor points to a folder
    if (!std::filesystem::read_symlink(entry.path(), gone).native().ends_with("/fd")) {
      found.insert(fd);
    }
  }
  return fmt::format("{}", fmt::join(found, ","));
}

std::string describe_surroundings() {
  char name[16] = {};
  ::prctl(PR_GET_NAME, name);
  rlimit core{};
  ::getrlimit(RLIMIT_CORE, &core);
  sigset_t mask;
  ::sigprocmask(SIG_SETMASK, nullptr, &mask);
  struct sigaction pipe{};
  ::sigaction(SIGPIPE, nullptr, &pipe);
  struct sigaction terminate{};
  ::sigaction(SIGTERM, nullptr, &terminate);
  return fmt::format("fds={} stdin={} name={} core={} masked={} sigpipe={} sigterm={}", open_descriptors(),
                     std::filesystem::read_symlink("/proc/self/fd/0").native(), name, core.rlim_cur,
                     sigisemptyset(&mask) ? "none" : "some", pipe.sa_handler == SIG_IGN ? "ignored" : "other",
                     terminate.sa_handler == SIG_DFL ? "default" : "other");
}

/// Holds the worker's pipes open and writes lines to them for ever when `noisy`.
std::string start_grandchild(bool noisy) {
  const auto pid = ::fork();
  if (pid == 0) {
    ::close(3);
    ::close(4);
    ::signal(SIGPIPE, SIG_DFL);
    while (noisy && ::write(STDOUT_FILENO, "noise\n", 6) > 0) {
    }
    for (;;) {
      ::pause();
    }
  }
  return std::to_string(pid);
}

std::string send_memfd(int channel, Argument argument) {
  const auto space = argument.find(' ');
  const auto text = argument.substr(space + 1);
  const node::UniqueFd memory(::memfd_create("test", MFD_CLOEXEC));
  if (::pwrite(memory.get(), text.data(), text.size(), 0) < 0) {
    return "error: pwrite";
  }
  node::send_descriptor(channel, std::stoi(argument), memory.get());
  return "ok";
}

std::string receive_memfd(int channel, std::chrono::milliseconds timeout) {
  const auto received = node::receive_descriptor(channel, timeout);
  if (!received) {
    return "nothing";
  }
  char text[256];
  const auto size = ::pread(received->fd.get(), text, sizeof text, 0);
  return fmt::format("from {}: {}", received->from_rank, std::string(text, size > 0 ? size : 0));
}

std::string try_a_node() {
  try {
    node::Node::instance();
    return "it has one";
  } catch (const Error& error) {
    return error.code() == ErrorCode::invalid_state ? "invalid_state" : "another error";
  }
}

void print_lines(int stream, Argument argument) {
  const std::string line(1023, 'x');
  const int count = std::stoi(argument);
  for (int i = 1; i <= count; ++i) {
    std::puts(line.c_str());
    if (i % 1024 == 0) {
      write_line(stream, fmt::format("MiB {}", i / 1024));
    }
  }
}

std::string print(std::FILE* to, const std::string& text) {
  std::fputs(text.c_str(), to);
  std::fflush(to);
  return "ok";
}

[[gnu::noinline]] int recurse(int depth) {
  volatile char frame[4096];
  frame[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : recurse(depth + 1) + frame[0];  // not a tail call
}

std::string grow(std::size_t megabytes) {
  use_memory(megabytes);
  return "ok";
}

std::string die(int signal_number) {
  ::raise(signal_number);
  return "ok";
}

}  // namespace

void obey_commands(const node::WorkerStart& start) {
  bool working = true;
  const std::map<std::string, std::function<std::string(Argument)>> commands = {
      {"return",
       [&](Argument) {
         working = false;
         return "ok";
       }},
      {"exit", [](Argument a) -> std::string { ::_exit(std::stoi(a)); }},
      {"raise", [](Argument a) { return die(std::stoi(a)); }},
      {"throw", [](Argument a) -> std::string { throw std::runtime_error(a); }},
      {"grow", [](Argument a) { return grow(std::stoul(a)); }},
      {"overflow", [](Argument) { return std::to_string(recurse(0)); }},
      {"print", [](Argument a) { return print(stdout, a + "\n"); }},
      {"eprint", [](Argument a) { return print(stderr, a + "\n"); }},
      {"partial", [](Argument a) { return print(stdout, a); }},
      {"unflushed",
       [](Argument a) {
         std::fputs(a.c_str(), stdout);
         return "ok";
       }},
      {"flood", [](Argument a) { return print(stdout, std::string(std::stoul(a), 'y')); }},
      {"lines",
       [&](Argument a) {
         print_lines(start.stream, a);
         return "ok";
       }},
      {"surroundings", [](Argument) { return describe_surroundings(); }},
      {"token", [&](Argument) { return std::to_string(start.token); }},
      {"grandchild", [](Argument a) { return start_grandchild(a == "noisy"); }},
      {"send_fd", [&](Argument a) { return send_memfd(start.descriptors, a); }},
      {"receive_fd",
       [&](Argument a) { return receive_memfd(start.descriptors, std::chrono::milliseconds(std::stoi(a))); }},
      {"node", [](Argument) { return try_a_node(); }},
      {"getenv",
       [](Argument a) {
         const char* v = std::getenv(a.c_str());
         return std::string(v ? v : "(unset)");
       }},
  };
  for (std::string line; working && read_line(start.stream, line);) {
    const auto space = line.find(' ');
    const auto command = commands.find(line.substr(0, space));
    const auto argument = space == std::string::npos ? "" : line.substr(space + 1);
    write_line(start.stream, command == commands.end() ? "unknown command" : command->second(argument));
  }
}

}  // namespace troupe::test
