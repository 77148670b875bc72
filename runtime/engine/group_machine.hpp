// SPDX-License-Identifier: Apache-2.0
// The life of a group of workers: start, attempts, replacement of the dead, shutdown. Pure: events in, actions out,
// time as an argument. The WorkerGroup actor carries the actions out.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/engine/failure.hpp"
#include "runtime/engine/failure_policy.hpp"

namespace troupe::engine {

struct GroupLimits {
  int world_size = 1;
  Duration start_deadline = std::chrono::seconds(60);
  Duration stop_deadline = std::chrono::seconds(5);
  bool can_kill = true;      ///< false in thread placement
  int start_attempts = 3;    ///< so often may one rank die before it is up
  bool forms_group = false;  ///< workers have a backend that must be formed by all of them together
};

/// Start a worker for this rank.
struct LaunchWorker {
  int rank;
};
/// End its process.
struct KillWorker {
  int rank;
  bool politely;  ///< SIGTERM instead of SIGKILL
};
/// Form the process group together with all others.
struct SendForm {
  int rank;
  std::uint64_t epoch;
};
struct SendRun {
  int rank;
};
/// Stop what you do; pending collectives end with GroupLost.
struct SendHalt {
  int rank;
};
/// Finish what you do, take the backend down, end.
struct SendLeave {
  int rank;
};
/// start() succeeded.
struct GroupStarted {};
/// start() failed; the group must be shut down.
struct StartFailed {
  Failure failure;
};
/// No rank runs the function any more.
struct AttemptEnded {
  std::optional<Failure> failure;
};
/// No worker is left, but for threads that do not stop.
struct GroupGone {
  std::vector<int> stuck_ranks;
};
using GroupAction = std::variant<LaunchWorker, KillWorker, SendForm, SendRun, SendHalt, SendLeave, GroupStarted,
                                 StartFailed, AttemptEnded, GroupGone>;
using GroupActions = std::vector<GroupAction>;

/// How the function ended on one rank.
enum class RankEnd : std::uint8_t { returned, stopped, threw };

class GroupMachine {
public:
  explicit GroupMachine(GroupLimits limits);

  GroupActions start(Time now);
  /// The worker is connected; it can be asked to leave.
  void registered(int rank);
  /// The worker's backend, hook and object are set up.
  GroupActions ready(int rank, Time now);
  /// The worker has formed the group of that epoch.
  GroupActions formed(int rank, std::uint64_t epoch, Time now);
  /// It could not. That another rank was lost meanwhile is no failure: all form again.
  GroupActions form_failed(int rank, std::uint64_t epoch, Failure failure, Time now);
  /// The worker's hook, backend or object threw, or it was refused: trying again cannot help.
  GroupActions setup_failed(Failure failure);
  /// There is no worker for `failure.rank`, and none will come.
  GroupActions launch_failed(Failure failure);

  GroupActions begin_attempt(Time now);
  GroupActions stop_attempt(bool at_once, Time now);
  /// Ends the attempt with a failure that is no rank's death (unequal reports).
  GroupActions fail_attempt(Failure failure, Time now);
  /// `failure` is set when the function threw.
  GroupActions done(int rank, RankEnd end, std::optional<Failure> failure, Time now);

  /// The connection broke; why is not known yet. The others are halted at once, the end follows with lost().
  GroupActions disconnected(int rank, Time now);
  /// The worker is gone. `cause`: "killed by SIGKILL (out of memory?)".
  GroupActions lost(int rank, const std::string& cause, std::vector<std::string> log_lines, Time now);
  /// A thread rank that was given up as stuck has ended what it did after all.
  void came_back(int rank);
  /// SIGSTOP and SIGCONT.
  GroupActions frozen(int rank, bool is_frozen);

  GroupActions leave(Duration patience, Time now);
  GroupActions tick(Time now);
  /// When tick() wants to be called.
  std::optional<Time> deadline() const;

  bool is_running(int rank) const { return slot(rank).state == State::running; }
  bool leaving() const { return leaving_; }

private:
  enum class State { absent, starting, ready, forming, running, stuck };
  enum class Attempt { none, pending, running, stopping };
  struct Slot {
    State state = State::absent;
    bool registered = false;
    bool frozen = false;
    bool killed = false;  // by us: its death is no failure
    int start_failures = 0;
    Time start_deadline{};
  };

  Slot& slot(int rank) { return slots_.at(static_cast<std::size_t>(rank)); }
  const Slot& slot(int rank) const { return slots_.at(static_cast<std::size_t>(rank)); }
  bool all(State state) const;
  void launch(int rank, Time now, GroupActions& actions);
  void launch_absent(Time now, GroupActions& actions);
  void proceed(Time now, GroupActions& actions);
  void form_all(Time now, GroupActions& actions);
  void abort_forming(GroupActions& actions);
  void run_all(GroupActions& actions);
  void halt_running(Time now, GroupActions& actions);
  void end_attempt_if_quiet(GroupActions& actions);
  void give_up_start(Failure failure, GroupActions& actions);
  void lost_while_starting(int rank, const std::string& cause, std::vector<std::string> lines, Time now,
                           GroupActions& actions);
  void kill_or_abandon(GroupActions& actions);
  void end_leave_if_gone(GroupActions& actions);
  void tick_leave(Time now, GroupActions& actions);

  GroupLimits limits_;
  std::vector<Slot> slots_;
  std::vector<RestartWindow> idle_restarts_;  // by rank: all may die at once, with the fork server
  bool start_pending_ = false;
  // A group is usable in the epoch it was formed in. Every new worker, and every halt (it aborts collectives), begins a
  // new one.
  std::uint64_t epoch_ = 0;
  std::uint64_t formed_epoch_ = 0;
  Attempt attempt_ = Attempt::none;
  std::optional<Failure> failure_;     // the attempt's first
  std::optional<Time> stop_deadline_;  // of the attempt
  bool leaving_ = false;
  bool gone_ = false;
  std::optional<Time> term_deadline_;
  std::optional<Time> kill_deadline_;
};

}  // namespace troupe::engine
