// SPDX-License-Identifier: Apache-2.0
// The life of a group of workers: start, attempts, replacement of the dead, going on in place, growing and shrinking,
// shutdown. Pure: events in, actions out, time as an argument. The WorkerGroup actor carries the actions out.
//
// Workers are numbered by their place, which they keep while others come and go: that number is what events and
// actions call a rank. Those that train are the members; a member's rank in the world of the moment is its position
// among them (members()). Both numbers are the same while no place is left out.
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
  int start_attempts = 3;    ///< so often may one rank die before it is up, or the group not be formed for no reason
  bool forms_group = false;  ///< workers have a backend that must be formed by all of them together
  int min_workers = 0;       ///< with fewer it does not go on; 0: world_size
  int max_workers = 0;       ///< 0: world_size
  /// After a worker could not be replaced, before the next try; then doubling.
  Duration first_growth_delay = std::chrono::seconds(1);
  Duration longest_growth_delay = std::chrono::seconds(60);
  int more_tries = 10;                                  ///< so often for a worker that cannot be done without
  Duration rejoin_deadline = std::chrono::seconds(60);  ///< of a step, when others were lost; then its rank is replaced
  int spares = 0;                                       ///< so many connected workers may stand by
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
  bool joining = false;  ///< the others are in the middle of the run: there is no group until all are held
};
/// Pending and later collectives end with GroupLost; what the rank does is not stopped.
struct SendAbort {
  int rank;
};
/// All are held and the group is formed: go on.
struct SendResume {
  int rank;
};
/// May the attempt go on in place after this? Answered by go_on() or fail_attempt().
struct AskToGoOn {
  Failure failure;
};
/// One line for people.
struct Tell {
  std::string text;
};
/// The group has changed by itself, or waits for workers: for the log and the run's list of decisions.
struct Decided {
  Decision decision;
};
/// Tell this rank that another one, or itself, will be taken away.
struct SendNotice {
  int rank;
  int preempted;
  Time deadline;
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
using GroupAction =
    std::variant<LaunchWorker, KillWorker, SendForm, SendRun, SendAbort, SendResume, SendNotice, SendHalt, SendLeave,
                 AskToGoOn, Tell, Decided, GroupStarted, StartFailed, AttemptEnded, GroupGone>;
using GroupActions = std::vector<GroupAction>;

/// How the function ended on one rank.
enum class RankEnd : std::uint8_t { returned, stopped, threw };

class GroupMachine {
public:
  explicit GroupMachine(GroupLimits limits);

  GroupActions start(Time now);
  /// The worker is connected; it can be asked to leave.
  GroupActions registered(int rank);
  /// The worker stood by, connected, before it got this rank. If it dies before it is set up, it may have been dead
  /// already: that is no failed start, as often as there may be spares.
  void promoted(int rank);
  /// The worker's backend, hook and object are set up.
  GroupActions ready(int rank, Time now);
  /// The worker has formed the group of that epoch.
  GroupActions formed(int rank, std::uint64_t epoch, Time now);
  /// It could not. That another rank was lost meanwhile is no failure: all form again.
  GroupActions form_failed(int rank, std::uint64_t epoch, Failure failure, Time now);
  /// The worker's hook, backend or object threw, or it was refused. Trying again cannot help: others do without
  /// it, or end.
  GroupActions setup_failed(Failure failure, Time now);
  /// There is no worker for `failure.rank`, and none will come.
  GroupActions launch_failed(Failure failure, Time now);

  GroupActions begin_attempt(Time now);
  GroupActions stop_attempt(bool at_once, Time now);
  /// Ends the attempt with a failure that is no rank's death (unequal reports).
  GroupActions fail_attempt(Failure failure, Time now);
  /// `failure` is set when the function threw, GroupLost included, which is RankEnd::stopped. `saw_notice`: it has
  /// looked at a notice of preemption, so its return may be the answer to that.
  GroupActions done(int rank, RankEnd end, const std::optional<Failure>& failure, Time now, bool saw_notice = false);
  /// The function has been left, and what it saved is still being written: done() follows, however long that takes.
  void saving(int rank);

  /// The worker will be taken away: all ranks are told. When it leaves its function after that, or at the deadline, it
  /// is replaced; functions that can go on in place do, others run again.
  GroupActions preempt(int rank, Time deadline, Time now);

  /// Calls are under way between runs, or no longer: an idle group is formed anew when it has nothing else to do.
  GroupActions calls_open(bool open, Time now);
  bool has_open_calls() const { return calls_open_; }
  /// The function on this rank can go on in place when others are lost, or no longer.
  GroupActions live(int rank, bool is_live, Time now);
  /// The rank waits inside its function for a new group. `why`: what its collective said, or its own exception; `step`:
  /// the last one it has made, -1 if none.
  GroupActions held(int rank, const std::string& why, bool user_error, Time now, std::int64_t step = -1);
  /// The answer to AskToGoOn.
  GroupActions go_on(Time now);
  /// So many workers from now on, within the limits. Functions that can go on in place do; others are run again.
  GroupActions resize(int world_size, Time now);
  /// So many would find room. Nobody has to go when it gets less; what there is more is used by the next growth, or by
  /// use_room() now. Once somebody has asked for a size, that counts instead.
  void set_room(int workers) { room_ = workers; }
  GroupActions use_room(Time now);

  /// The connection broke; why is not known yet. The others are halted at once, the end follows with lost().
  GroupActions disconnected(int rank, Time now);
  /// The worker does not do its part any more, though its process lives: it is killed, and its end follows with lost().
  GroupActions give_up(int rank, const std::string& cause, Time now);
  /// The worker is gone. `cause`: "killed by SIGKILL (out of memory?)".
  GroupActions lost(int rank, const std::string& cause, std::vector<std::string> log_lines, Time now);
  /// A thread rank that was given up as stuck has ended what it did after all: its function, or a forming.
  GroupActions came_back(int rank, bool from_function);
  /// SIGSTOP and SIGCONT.
  GroupActions frozen(int rank, bool is_frozen);

  GroupActions leave(Duration patience, Time now);
  GroupActions tick(Time now);
  /// When tick() wants to be called.
  std::optional<Time> deadline() const;

  bool leaving() const { return leaving_; }
  /// Ranks are told to drop their collectives, and have not all gone on.
  bool regrouping() const { return attempt_ == Attempt::regrouping; }
  /// Places of those that train, in rank order.
  std::vector<int> members() const;
  /// Workers that are there or on their way, and places that wait for one.
  int occupied() const;

private:
  enum class State { absent, starting, ready, forming, running, held, stuck };
  enum class Attempt { none, pending, running, regrouping, stopping };
  enum class Permission { not_needed, needed, asked, given };
  struct Slot {
    State state = State::absent;
    bool member = false;
    bool live = false;         // its function goes on in place
    bool joining = false;      // runs the function, but has not been in the group
    bool dropped = false;      // told to leave: it is not replaced
    std::uint64_t formed = 0;  // the epoch it has formed while it was held
    bool registered = false;
    bool promoted = false;
    bool frozen = false;
    bool going = false;   // its end is certain, and not our doing
    bool killed = false;  // by us: its death is no failure
    bool saving = false;  // out of the function, but not done()
    bool stuck_inside = false;
    bool preempted = false;
    std::optional<Time> taken_at = {};  // not later, if it is preempted
    int start_failures = 0;
    int dead_spares = 0;  // in a row
    Time start_deadline{};
    std::optional<Time> leave_deadline = {};  // of one that was told to leave
  };
  /// Workers that are needed cannot be had; the others wait.
  struct Shortage {
    Time since{};
    int tries = 0;
    std::optional<Time> again_at = {};  // unset while a try is under way
  };

  Slot& slot(int rank) { return slots_.at(static_cast<std::size_t>(rank)); }
  const Slot& slot(int rank) const { return slots_.at(static_cast<std::size_t>(rank)); }
  int places() const { return static_cast<int>(slots_.size()); }
  int member_count() const;
  int rank_of(int place) const;
  bool all_members(State state) const;
  bool in_function(int rank) const;
  bool only_others_run() const;
  void launch(int rank, Time now, GroupActions& actions);
  void launch_absent(Time now, GroupActions& actions);
  void proceed(Time now, GroupActions& actions);
  void form_all(Time now, GroupActions& actions);
  void abort_forming(GroupActions& actions);
  void abort_calls(GroupActions& actions) const;
  void run_all(GroupActions& actions);
  void halt_running(Time now, GroupActions& actions);
  bool can_regroup(int without) const;
  void regroup(Permission permission, Time now, GroupActions& actions);
  void send_in(int rank, Time now, GroupActions& actions);
  void proceed_regrouping(Time now, GroupActions& actions);
  void resume_all(GroupActions& actions);
  void fall_back(Time now, GroupActions& actions, const std::string& why = {});
  void lost_in_regrouping(int rank, Permission permission, Time now, GroupActions& actions);
  void ask_to_go_on(GroupActions& actions);
  bool do_without(int rank, const std::string& why, Time now, GroupActions& actions);
  void drop(int rank, Time now, GroupActions& actions);
  void drop_surplus(Time now, GroupActions& actions);
  void drop_newcomers(Time now, GroupActions& actions);
  static void decide(std::string why, std::string what, Time now, GroupActions& actions, Duration delay = {});
  void grow(Time now, GroupActions& actions);
  void grow_if_wanted(Time now, GroupActions& actions);
  bool may_all_return() const;
  void end_regrouping_if_over(Time now, GroupActions& actions);
  bool is_ending() const;
  bool did_not_join(int rank, RankEnd end, const std::optional<Failure>& failure, Time now, GroupActions& actions);
  void plan_growth(Time now);
  void take_in_newcomers(Time now, GroupActions& actions);
  void let_in(const std::vector<int>& newcomers, Time now, GroupActions& actions);
  Failure run_again() const;
  static Failure group_failed(int rank, const std::string& why);
  int surplus() const { return member_count() - wanted_; }
  void note_failure(Failure failure);
  bool is_coming_up(const Slot& s) const;
  void kill(int rank, GroupActions& actions);
  int missing() const;
  void tick_regrouping(Time now, GroupActions& actions);
  void tick_starting(Time now, GroupActions& actions);
  void tick_dropped(Time now, GroupActions& actions);
  void end_attempt_if_quiet(GroupActions& actions);
  void give_up_start(Failure failure, Time now, GroupActions& actions);
  void could_not_start(Failure failure, Time now, GroupActions& actions);
  void try_again_later(Failure failure, Time now, GroupActions& actions);
  void lost_while_starting(int rank, const std::string& cause, std::vector<std::string> lines, Time now,
                           GroupActions& actions);
  void stop_took_too_long(Time now, GroupActions& actions);
  void kill_or_abandon(GroupActions& actions, bool even_writing);
  void end_leave_if_gone(GroupActions& actions);
  void tick_leave(Time now, GroupActions& actions);
  void announce_preempted(int rank, GroupActions& actions) const;
  void answer_notice(int rank, GroupActions& actions);
  void take(int rank, GroupActions& actions);
  void tick_preempted(Time now, GroupActions& actions);

  GroupLimits limits_;
  int wanted_;             // workers, at most
  int room_;               // for so many
  bool asked_ = false;     // for what is wanted, whatever there is room for
  bool resizing_ = false;  // somebody asked for more, and waits for them
  std::vector<Slot> slots_;
  std::vector<RestartWindow> idle_restarts_;  // by rank: all may die at once, with the fork server
  bool start_pending_ = false;
  bool is_up_ = false;  // all were there once
  bool calls_open_ = false;
  bool forming_failed_ = false;  // nobody tries again before something has changed
  int failed_formings_ = 0;      // in a row, without a loss that could be the reason
  // A group is usable in the epoch it was formed in. Every new worker, and every halt (it aborts collectives), begins a
  // new one.
  std::uint64_t epoch_ = 0;
  std::uint64_t formed_epoch_ = 0;
  Attempt attempt_ = Attempt::none;
  std::optional<Failure> failure_;       // the attempt's first
  std::optional<Failure> suspicion_;     // a rank lost its group, and nobody knows yet why
  bool stop_asked_ = false;              // what fails after that is no failure of the attempt
  std::optional<Failure> failed_first_;  // it was ending with this when the stop was asked for
  std::optional<Time> stop_deadline_;    // of the attempt
  std::optional<Time> notice_deadline_;  // a rank has left after a notice: until then the others may still save
  Permission permission_ = Permission::not_needed;
  std::optional<Time> grow_at_;
  Duration growth_delay_;
  std::optional<Shortage> shortage_;  // of an attempt that is pending or regrouping
  bool leaving_ = false;
  bool gone_ = false;
  std::optional<Time> term_deadline_;
  std::optional<Time> kill_deadline_;
};

}  // namespace troupe::engine
