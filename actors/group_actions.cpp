// SPDX-License-Identifier: Apache-2.0
// The WorkerGroup does what the GroupMachine decided.
#include <signal.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "actors/group_state.hpp"

namespace troupe {

void GroupState::perform(const engine::GroupActions& actions) {
  for (const auto& action : actions) std::visit([this](const auto& one) { act(one); }, action);
  spec_->cpus->hold(machine_->occupied());
  arm_timer();
}

void GroupState::perform_with_room(const std::function<engine::GroupActions(Clock::time_point)>& event) {
  engine::GroupActions actions;
  spec_->cpus->use([&](int room) {
    machine_->set_room(room);
    actions = event(Clock::now());
    return machine_->occupied();
  });
  perform(actions);
}

void GroupState::act(const engine::LaunchWorker& action) {
  auto& rank = rank_at(action.rank);
  rank = Rank{.launched = Clock::now(), .world_rank = rank.world_rank};
  view_->set(action.rank, {});
  try {
    if (auto spare = spares_->take())
      promote(std::move(*spare), action.rank);
    else if (in_processes_)
      launch_process(action.rank);
    else
      launch_thread(action.rank);
  } catch (const std::exception& error) {
    view_->set_state(action.rank, "lost");
    perform(
        machine_->launch_failed(fatal(ErrorCode::start_failed, action.rank,
                                      fmt::format("rank {} could not be started: {}", rank.world_rank, error.what())),
                                Clock::now()));
  }
}

Failure GroupState::by_rank(Failure failure) const {
  if (failure.rank >= 0) failure.rank = ranks_.at(static_cast<std::size_t>(failure.rank)).world_rank;
  return failure;
}

void GroupState::act(const engine::KillWorker& action) {
  if (in_processes_) node::Node::instance().signal(rank_at(action.rank).token, action.politely ? SIGTERM : SIGKILL);
}

void GroupState::act(const engine::SendForm& action) {
  if (std::exchange(numbered_, action.epoch) != action.epoch) number_ranks();
  compat::tell(self_, rank_at(action.rank).handle, wire::Form{action.epoch, place_of(action.rank)});
  view_->set_state(action.rank, "forming");
}

void GroupState::act(const engine::SendRun& action) {
  auto& rank = rank_at(action.rank);
  const auto members = machine_->members();
  if (!action.joining && action.rank == members.front()) {
    number_ranks();
    if (members.size() < ranks_.size()) rounds_added(rounds_->regroup(members, {}));
  }
  if (!rank.handle) return;  // its connection broke just now: the news of its end follows
  const auto& run = run_->spec;
  wire::RunRequest request;
  request.generation = generation_;
  request.function = run.function;
  request.config = send_blob(self_, rank.handle, rank.token, run.config, shared_blob_bytes);
  request.detailed_metrics = run.detailed_metrics;
  request.window_reports = window_.reports;
  request.window_bytes = window_.bytes;
  request.first_checkpoint = checkpoint_setup_.first_id;
  request.checkpoint_folder = checkpoint_setup_.folder;
  request.start = send_place(rank, checkpoint_setup_.start);
  request.ranks = place_of(action.rank);
  request.joining = action.joining;
  request.retry_user_errors = spec_->settings.retry_user_errors;
  rank.world_rank = request.ranks.world_rank;
  rank.joined = !action.joining;
  rank.step = -1;
  rank.saves.reset();
  rank.awaits = 0;
  request.result_folder = checkpoint_setup_.results;
  compat::tell(self_, rank.handle, std::move(request));
  view_->set_running(action.rank);
  // Nobody waits for one that is to make the group larger: it may take as long as it likes.
  if (is_member(action.rank)) watch_->began(action.rank, Clock::now());
}

void GroupState::act(const engine::SendAbort& action) {
  regrouping_ = true;
  compat::tell(self_, rank_at(action.rank).handle, atom::abort_v);
}

void GroupState::act(const engine::SendResume& action) {
  const auto members = machine_->members();
  const bool has_newcomers =
      !std::all_of(members.begin(), members.end(), [&](int index) { return rank_at(index).joined; });
  if (std::exchange(regrouping_, false) || has_newcomers) regrouped();
  auto& rank = rank_at(action.rank);
  rank.saves.reset();
  compat::tell(self_, rank.handle, wire::Resume{generation_, place_of(action.rank)});
  view_->set_state(action.rank, "running");
  watch_->began(action.rank, Clock::now());
}

void GroupState::act(const engine::AskToGoOn& action) {
  asked_ = action.failure;
  compat::tell(self_, trainer_, local::AskToGoOn{generation_, by_rank(action.failure)});
}

void GroupState::act(const engine::SendNotice& action) {
  const auto left = std::chrono::duration_cast<engine::Duration>(action.deadline - Clock::now());
  compat::tell(self_, rank_at(action.rank).handle,
               wire::PreemptionNotice{generation_, rank_at(action.preempted).world_rank, left.count()});
}

void GroupState::preempt(int rank, engine::Duration within) {
  const auto now = Clock::now();
  perform(machine_->preempt(rank, now + within, now));
}

void GroupState::act(const engine::SendHalt& action) {
  compat::tell(self_, rank_at(action.rank).handle, wire::Halt{generation_});
}

void GroupState::act(const engine::SendLeave& action) {
  compat::tell(self_, rank_at(action.rank).handle, atom::leave_v);
}

void GroupState::act(const engine::GroupStarted&) {
  number_ranks();
  refill_spares();
  compat::tell(self_, trainer_, local::GroupUp{});
}

void GroupState::act(const engine::AttemptEnded& action) {
  std::vector<Json> results;  // in rank order
  for (int index : machine_->members())
    if (!results_.empty()) results.push_back(std::move(results_[static_cast<std::size_t>(index)]));
  // What the ranks printed is on the screen before anybody hears of the end.
  after_output([this, over = local::AttemptOver{generation_, action.failure, std::move(results)}]() mutable {
    if (over.failure && over.failure->kind == FailureKind::user_error && in_processes_)
      over.failure->log_lines = node::Node::instance().last_lines(rank_at(over.failure->rank).token);
    if (over.failure) over.failure = by_rank(std::move(*over.failure));
    compat::tell(self_, trainer_, std::move(over));
  });
  results_.clear();
  for (auto& rank : ranks_) watch_->ended(index_of(&rank));
  run_.reset();
  rounds_.reset();
  checkpoints_ = nullptr;
}

void GroupState::act(const engine::GroupGone& action) {
  stuck_ranks_ = action.stuck_ranks;
  spec_->cpus->close();
  spares_->close();
  for (const auto& spare : spares_->all()) node::Node::instance().signal(spare.token, SIGKILL);
  end_if_all_gone();
}

void GroupState::end_if_all_gone() {
  if (!stuck_ranks_ || !spares_->empty() || !dying_.empty()) return;
  calls_->close();
  for (auto& rank : ranks_) rank.calls.fail_all(rank.world_rank, "the trainer was shut down");
  after_output([this] {
    compat::tell(self_, trainer_, local::GroupOver{*stuck_ranks_});
    self_->unlink_from(store_);
    compat::end(store_);
    self_->quit();
  });
}

void GroupState::after_output(std::function<void()> then) {
  if (!in_processes_) return then();
  std::vector<node::Token> living;
  for (const auto& rank : ranks_)
    if (rank.token != 0) living.push_back(rank.token);
  drain_.wait(caf::actor_cast<caf::actor_addr>(self_), living, std::move(then));
  arm_timer();
}

void GroupState::arm_timer() {
  auto next = machine_->deadline();
  const auto consider = [&](const std::optional<Clock::time_point>& time) {
    if (time && (!next || *time < *next)) next = time;
  };
  consider(drain_.deadline());
  if (rounds_ && !machine_->regrouping()) consider(rounds_->deadline());
  if (!machine_->leaving()) {
    consider(watch_->deadline());
    consider(refill_at_);
  }
  if (!next || (armed_ && *armed_ <= *next)) return;
  armed_ = next;
  compat::remind(self_, std::max<Clock::duration>(*next - Clock::now(), Clock::duration::zero()), atom::tick_v);
}

}  // namespace troupe
