// SPDX-License-Identifier: Apache-2.0
// The Node of this host: starts worker processes through the fork server, reaps them, carries their output, and is the
// only one to signal them. One per process, shared by all Trainers. No CAF here.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::node {

/// What happened to a worker process.
struct ProcessEvent {
  enum class Kind {
    forked,     ///< value: unused
    exited,     ///< value: exit status
    signaled,   ///< value: signal
    stopped,    ///< SIGSTOP and the like; value: signal
    continued,  ///< value: unused
    dying,   ///< its end is certain, and follows; told of big processes above all, may be missing; once more with the
             ///< cause as `text`, if that is known before the end
    failed,  ///< could not be forked; `text` says why
  };
  Kind kind = Kind::failed;
  pid_t pid = -1;
  int value = 0;
  std::string text;  ///< for people: "killed by SIGKILL (out of memory?)", "exited with status 3"

  /// The process is gone (or never was).
  bool is_end() const { return kind == Kind::exited || kind == Kind::signaled || kind == Kind::failed; }
};

/// Names one worker process for its whole life; never reused.
using Token = std::uint64_t;

struct LaunchRequest {
  int rank = 0;
  std::uint64_t group = 0;           ///< descriptors are relayed inside a group only
  std::filesystem::path log_file{};  ///< its lines are appended here; folders are made
  /// Called on the Node's thread, in order, never after the end event; must not block.
  std::function<void(Token, const ProcessEvent&)> on_event{};
};

struct Launched {
  Token token = 0;
  int stream = -1;  ///< our end of the stream socketpair that CAF takes over; the caller owns it
};

class Node {
public:
  /// Made at first use, never destroyed; at exit the fork server is ended and reaped.
  /// Throws Error(invalid_state) when troupe::init() was not called, and in a fork of the process that it was made in.
  static Node& instance();

  /// Asks for one more worker; the outcome comes as events. Throws Error(start_failed) when descriptors run out or no
  /// fork server can be had. A fork server that died is replaced by a re-exec of this program.
  Launched launch(LaunchRequest request);
  /// Signals through the pidfd: never hits another process. Nothing happens for one that is gone. A signal sent before
  /// the process was forked is delivered right after.
  void signal(Token token, int signal_number);
  /// -1 until it is forked or when it is gone.
  pid_t pid_of(Token token);
  /// From now on this is its rank: in front of its lines, and for descriptors.
  void set_rank(Token token, int rank);
  /// From now on the worker's lines go to this file.
  void set_log_file(Token token, const std::filesystem::path& log_file);
  /// Ends a partial line, and calls `done` (on another thread, soon) once everything the worker wrote before this call
  /// has been printed and is in its log file. Also works for a worker that is gone.
  void drain(Token token, std::function<void()> done);
  /// The last lines the worker wrote, oldest first (at most 20); kept for a while after its end.
  std::vector<std::string> last_lines(Token token);
  /// last_lines() begins anew: what the worker wrote before this call is of no interest any more.
  void forget_last_lines(Token token);
  /// -1 while there is none.
  pid_t fork_server_pid();

private:
  Node();
  static Node& only();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What a worker process inherits.
struct WorkerStart {
  Token token = 0;
  int stream = -1;       ///< the stream socketpair CAF takes over
  int descriptors = -1;  ///< the SOCK_SEQPACKET pair to the Node, for descriptors only
};
using WorkerMain = void (*)(const WorkerStart&);

/// `executed` if what is loaded already must not be what workers have.
enum class FirstServer { forked, executed };
/// The process part of troupe::init(): in a re-executed fork server it never returns; otherwise it forks the fork
/// server if that may be and this process has one thread (else that is left to a re-exec at the first launch). Each
/// worker calls `worker_main` and `_exit(0)`s after it. Also ignores SIGPIPE.
void init_processes(int argc, char** argv, WorkerMain worker_main, FirstServer first = FirstServer::forked);
/// The environment as it was when the fork server was made: "NAME=value" strings.
const std::vector<std::string>& environment_at_init();

}  // namespace troupe::node
