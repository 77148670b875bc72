// SPDX-License-Identifier: Apache-2.0
// The inside of the Node: one thread that waits on all descriptors, and the records of the workers under one lock.
// Callbacks run without the lock. Nothing here blocks while the lock is held.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "actors/node/death_watch.hpp"
#include "actors/node/fork_server.hpp"
#include "actors/node/log_printer.hpp"
#include "actors/node/node.hpp"
#include "actors/node/worker_output.hpp"

namespace troupe::node {

/// A fork server that has not told of a death by then does nothing any more: somebody has stopped it.
inline constexpr std::chrono::seconds server_patience{5};
/// The same until it serves: a program that is run anew loads its libraries first.
inline constexpr std::chrono::seconds server_start_patience{30};

inline constexpr const char* killed_with_server_text = "killed with the fork server";

/// A worker process from its launch to its end.
struct WorkerRecord {
  LaunchRequest request;
  WorkerOutput output;
  UniqueFd descriptors;  ///< our end of its descriptor channel
  pid_t pid = -1;        ///< known from the `forked` event on
  UniqueFd pidfd;
  std::vector<int> early_signals;  ///< asked for before it was forked
  int last_signal_sent = 0;        ///< by us
  bool lost_with_server = false;
  std::optional<std::chrono::steady_clock::time_point> dead_since;  ///< killed by us; its end was not told yet
};

struct Node::Impl {
public:
  Impl();

  Launched launch(LaunchRequest request);
  void signal(Token token, int signal_number);
  pid_t pid_of(Token token);
  void set_rank(Token token, int rank);
  void set_log_file(Token token, const std::filesystem::path& log_file);
  void drain(Token token, std::function<void()> done);
  std::vector<std::string> last_lines(Token token);
  void forget_last_lines(Token token);
  pid_t fork_server_pid();

  /// The program exits: no more callbacks, the fork server ends (and the workers with it), the printer gets a moment.
  /// Who signals a worker after that is told of its end by that call: a Trainer with static storage waits for it.
  void at_exit();
  /// The process this Node was made in; a copy that the user forked has no part in it.
  pid_t owner() const { return owner_; }

private:
  using Lock = std::unique_lock<std::mutex>;
  using Records = std::unordered_map<Token, WorkerRecord>;

  /// What a descriptor in the epoll set is; travels in the event beside the token.
  enum class Watched : std::uint64_t { wake, server, descriptors, out, err, pidfd };
  struct Delivery {
    std::function<void(Token, const ProcessEvent&)> call;
    Token token;
    ProcessEvent event;
  };
  /// A request that waits for room in the fork server's socket.
  struct PendingFork {
    Token token;
    std::vector<UniqueFd> fds;
  };
  struct DeadWorker {
    Token token;
    std::vector<std::string> last_lines;
  };

  // node_impl.cpp: the thread and its epoll set
  [[noreturn]] void run();
  void handle(std::uint64_t key);
  void deliver(Lock& lock);
  void end_with_program(Records::iterator worker);
  [[noreturn]] void park(Lock& lock);
  void wake();
  bool watch(int fd, Watched what, Token token, std::uint32_t events);
  bool watch_end(Token token, const WorkerRecord& record);
  void unwatch(int fd);
  bool on_node_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // node_workers.cpp: the life of workers
  void handle_server();
  void handle_server_event(const ForkEvent& event, std::vector<UniqueFd> fds);
  void worker_forked(Token token, WorkerRecord& record, pid_t pid, UniqueFd pidfd);
  void send_signal(Token token, WorkerRecord& record, int signal_number);
  void deliver_later(Token token, const WorkerRecord& record, ProcessEvent event);
  void tell_deaths();
  void find_causes();
  void worker_ended(Records::iterator worker, ProcessEvent event);
  void relay_descriptor(Token token, WorkerRecord& from);
  WorkerRecord* find_rank(std::uint64_t group, int rank);
  void read_output(WorkerRecord& record, WorkerOutput::Stream stream);
  void watch_output(Token token, WorkerRecord& record);
  void pause_output();
  void resume_output();

  // node_servers.cpp: the fork server, seen from here
  void ensure_server(Lock& lock);
  void start_server();
  void adopt_server(ForkServer server);
  void server_lost();
  std::chrono::steady_clock::time_point when_server_must_answer(const WorkerRecord& killed) const;
  void check_server_at(std::chrono::steady_clock::time_point time);
  int server_check_in() const;
  void check_server();
  void flush_forks();
  void watch_server_room(bool wanted);

  const pid_t owner_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Token next_token_ = 1;
  Records workers_;
  std::deque<DeadWorker> dead_;  ///< newest last
  std::deque<Delivery> deliveries_;
  std::vector<Token> dying_;      ///< seen by the death watch, not told yet
  std::vector<Token> uncertain_;  ///< told, but not yet what of
  std::deque<PendingFork> forks_;
  ForkServer server_;
  bool server_said_hello_ = false;
  bool server_wanted_ = false;
  std::uint64_t server_attempts_ = 0;  ///< how often one was asked for
  std::string server_error_;           ///< why the last one could not be had, or was lost
  bool watching_server_room_ = false;
  std::chrono::steady_clock::time_point server_heard_;                 ///< when it came, or said something
  std::optional<std::chrono::steady_clock::time_point> server_check_;  ///< the Node's thread looks then
  bool output_paused_ = false;
  std::atomic<bool> exiting_ = false;
  bool parked_ = false;
  LogPrinter printer_;
  DeathWatch death_watch_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace troupe::node
