// SPDX-License-Identifier: Apache-2.0
// The state of the WorkerGroup actor, which carries out what the GroupMachine decides and moves reports, results and
// calls. Three files have its parts: group_actions.cpp (what the machine decided), group_workers.cpp (workers come and
// go), group_run.cpp (what a run produces).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/blob.hpp"
#include "actors/output_drain.hpp"
#include "actors/protocols.hpp"
#include "actors/rank_calls.hpp"
#include "actors/round_flow.hpp"
#include "actors/spare_pool.hpp"
#include "runtime/base/log.hpp"
#include "runtime/engine/group_machine.hpp"
#include "runtime/engine/rank_watch.hpp"
#include "runtime/session/report_channel.hpp"

namespace troupe {

using engine::Clock;
using engine::Failure;
using engine::FailureKind;
using local::GroupView;

inline Failure fatal(ErrorCode code, int rank, std::string text) {
  return {FailureKind::fatal, code, rank, std::move(text), {}};
}

/// Of a process that stands by.
constexpr int no_rank = -1;

class GroupState {
public:
  static inline const char* const name = "troupe.group";
  GroupState() = default;
  ~GroupState() {
    // Whatever ended the group, nobody waits for an answer any longer.
    if (calls_) calls_->close();
    for (auto& rank : ranks_) rank.calls.fail_all(rank.world_rank, "its group ended");
  }

  WorkerGroupActor::behavior_type run(WorkerGroupActor::pointer self, TrainerActor trainer,
                                      std::shared_ptr<const local::GroupSpec> spec, std::shared_ptr<GroupView> view,
                                      std::shared_ptr<local::CallQueue> calls);

private:
  struct Rank {
    std::uint64_t token = 0;  // 0: no worker
    WorkerActor handle;
    BlobInbox inbox;
    Clock::time_point launched;
    int pid = -1;
    bool is_forked = false;  // the Node knows its process
    bool is_set_up = false;
    bool joined = false;                 // it is in the run's group
    int world_rank = 0;                  // the last one it was told; its place before that
    std::optional<std::uint64_t> saves;  // made when it was held, until it goes on
    std::uint64_t awaits = 0;            // the last save that it did nothing but wait for
    std::int64_t step = -1;              // the last one it has made
    std::string given_up;                // why, when we ended it
    RankCalls calls;
  };

  int index_of(const Rank* rank) const { return static_cast<int>(rank - ranks_.data()); }
  Rank& rank_at(int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  Rank* find(std::uint64_t token);
  /// Its rank in the group of the moment. no_rank: it was told to leave, or is to make the group larger.
  int number_of(int index) const;
  bool is_member(int index) const { return number_of(index) != no_rank; }
  /// What a worker is told of its place. One that is to make the group larger has the next one, in a group that it is
  /// in.
  wire::Ranks place_of(int index) const;

  // ---- actions
  void perform(const engine::GroupActions& actions);
  /// For what may make the group larger: `event` is decided upon with the room there is, which nobody else takes.
  void perform_with_room(const std::function<engine::GroupActions(Clock::time_point)>& event);
  void act(const engine::LaunchWorker& action);
  void launch_process(int rank) { rank_at(rank).token = make_process(number_of(rank), log_file(rank)); }
  node::Token make_process(int rank, const std::filesystem::path& log);
  /// The spare becomes the worker of this place.
  void promote(Spare spare, int index);
  /// When there is nothing more urgent to do.
  void refill_spares();
  /// It is dead, dying or of no use, and nobody may take it.
  void end_spare(node::Token token);
  void spare_gone(node::Token token);
  void launch_thread(int rank);
  void act(const engine::KillWorker& action);
  void act(const engine::SendForm& action);
  /// Before any of them sends something to another by its number.
  void number_ranks();
  void act(const engine::SendRun& action);
  void act(const engine::SendAbort& action);
  void act(const engine::SendResume& action);
  void act(const engine::AskToGoOn& action);
  void act(const engine::Tell& action) { log_warning("{}", action.text); }
  void act(const engine::Decided& action) { compat::tell(self_, trainer_, local::GroupDecided{action.decision}); }
  /// Places are the group's own matter: all others speak of ranks.
  Failure by_rank(Failure failure) const;
  /// All are held, and go on with the reports and checkpoints of the one that is furthest.
  void regrouped();
  void act(const engine::SendNotice& action);
  void preempt(int rank, engine::Duration within);
  void act(const engine::SendHalt& action);
  void act(const engine::SendLeave& action);
  void act(const engine::GroupStarted&);
  void act(const engine::StartFailed& action) { compat::tell(self_, trainer_, local::GroupUp{action.failure}); }
  void act(const engine::AttemptEnded& action);
  void act(const engine::GroupGone& action);
  /// Nobody is left to manage; the last process may take its time.
  void end_if_all_gone();

  // ---- workers come and go
  std::filesystem::path log_file(int index) const;
  void enlist(const wire::Registration& registration, const caf::strong_actor_ptr& who);
  void forked(Rank& rank);
  void send_setup(Rank& rank, int index);
  void setup_done(const wire::SetupDone& done);
  void form_done(const wire::FormDone& done);
  /// Nobody is left to report to: end the workers, and then this actor.
  void trainer_ended() { leave(spec_->settings.shutdown_deadline); }
  void leave(engine::Duration patience) {
    drain_.limit(patience, Clock::now());
    perform(machine_->leave(patience, Clock::now()));
  }
  void someone_ended(const caf::down_msg& down);
  /// Its end is certain; its process must be gone after `patience`.
  void going(Rank& rank, Clock::duration patience);
  void process_news(const local::ProcessNews& news);
  void await_end_of(node::Token token);
  void answered(const wire::Pong& pong);
  void check_watch();
  void lost(int index, const std::string& what_was_seen, std::vector<std::string> log_lines);

  // ---- a run
  void begin_attempt(const local::BeginAttempt& begin);
  void add_reports(const wire::Reports& reports);
  void rounds_added(const RoundFlow::Added& added);
  void check_rounds();
  void give_credit(const local::Consumed& consumed);
  void send_credits(const std::vector<wire::Credit>& credits);

  // ---- checkpoints
  wire::CheckpointPlace send_place(const Rank& rank, const detail::CheckpointSource& source);
  void checkpoint_part(const wire::CheckpointPart& message);
  void save_over(const local::SaveOver& over);
  /// Who waits for a checkpoint comes to no new group: parts of it that nobody makes before there is one are given up.
  void give_up_awaited_parts();
  void rank_done(const wire::RankDone& done);
  void rank_held(const wire::Held& held);
  void has_made(Rank& rank, std::int64_t step);
  void tell_progress(std::int64_t step);

  // ---- calls
  void send_calls();
  /// Whether any are under way matters to who forms the group between runs.
  void check_calls();
  void answer(const wire::Replies& replies);

  // ---- output and time
  /// Calls `then` once all output so far was printed.
  void after_output(std::function<void()> then);
  void arm_timer();

  WorkerGroupActor::pointer self_ = nullptr;
  TrainerActor trainer_;
  std::shared_ptr<const local::GroupSpec> spec_;
  std::shared_ptr<GroupView> view_;
  std::shared_ptr<local::CallQueue> calls_;
  StoreActor store_;
  std::uint64_t number_ = 0;
  bool in_processes_ = true;
  std::vector<Rank> ranks_;
  std::optional<SparePool> spares_;
  std::optional<Clock::time_point> refill_at_;  // spares are missing, or are to be connected by then
  std::set<node::Token> dying_;                 // replaced, but not gone yet
  std::unique_ptr<engine::GroupMachine> machine_;
  std::optional<std::vector<int>> stuck_ranks_;  // set when the group is gone
  std::unique_ptr<engine::RankWatch> watch_;
  const detail::ReportWindow window_{};

  // The current attempt.
  std::shared_ptr<detail::Run> run_;
  std::uint64_t generation_ = 0;
  detail::CheckpointSetup checkpoint_setup_;
  CheckpointsActor checkpoints_;
  std::optional<RoundFlow> rounds_;
  std::int64_t furthest_step_ = -1;  // of all attempts, as far as it was told
  std::vector<Json> results_;
  std::optional<Failure> asked_;  // may the others go on in place after this?
  bool regrouping_ = false;       // ranks were told to drop their collectives
  bool mending_ = false;          // they were told to go on, and nobody has made a step yet
  std::vector<int> lost_ranks_;   // since all went on
  std::uint64_t saves_then_ = 0;  // of checkpoints, made by all when they went on
  std::uint64_t numbered_ = 0;    // the epoch for which the Node knows the ranks

  OutputDrain drain_;
  std::optional<Clock::time_point> armed_;
};

}  // namespace troupe
