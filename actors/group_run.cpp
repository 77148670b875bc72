// SPDX-License-Identifier: Apache-2.0
// What a run produces on its way through the WorkerGroup: reports, checkpoints, results, calls.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "actors/group_state.hpp"

namespace troupe {

void GroupState::regrouped() {
  const auto members = machine_->members();
  std::vector<int> newcomers;
  std::uint64_t saves = 0;
  std::int64_t step = -1;
  for (int index : members) {
    if (rank_at(index).joined) saves = std::max(saves, rank_at(index).saves.value_or(0));
    step = std::max(step, rank_at(index).step);
    if (!std::exchange(rank_at(index).joined, true)) newcomers.push_back(index);
  }
  for (int index : members) has_made(rank_at(index), step);  // all go on with the state after that one
  saves_then_ = saves;
  for (int lost : std::exchange(lost_ranks_, {}))
    compat::tell(self_, checkpoints_, local::PartsLost{generation_, lost, 0, saves});
  rounds_added(rounds_->regroup(members, newcomers));
  number_ranks();
  refill_spares();
  mending_ = true;
  for (int& index : newcomers) index = rank_at(index).world_rank;
  log_info("{} workers go on in place{}", members.size(),
           newcomers.empty() ? "" : fmt::format("; new: rank {}", fmt::join(newcomers, ", ")));
}

void GroupState::begin_attempt(const local::BeginAttempt& begin) {
  if (begin.attempt == 1) watch_->run_began();
  drain_.without_limit();
  run_ = begin.run;
  generation_ = begin.generation;
  checkpoint_setup_ = begin.checkpoint_setup;
  checkpoints_ = caf::actor_cast<CheckpointsActor>(begin.checkpoints);
  if (begin.attempt == 1) furthest_step_ = -1;
  const auto& settings = spec_->settings;
  results_.assign(ranks_.size(), Json());
  rounds_.emplace(
      run_, begin.attempt, generation_,
      engine::RoundAligner::Limits{settings.max_workers, window_.reports, window_.bytes, settings.report_deadline});
  lost_ranks_.clear();
  saves_then_ = 0;
  asked_.reset();
  regrouping_ = mending_ = false;
  for (auto& rank : ranks_) {
    if (!in_processes_ || rank.token == 0) continue;
    node::Node::instance().set_log_file(rank.token, log_file(index_of(&rank)));
    // Not those of a worker that is being set up: they belong to this attempt.
    if (rank.is_set_up) node::Node::instance().forget_last_lines(rank.token);
  }
  perform_with_room([this](Clock::time_point now) { return machine_->begin_attempt(now); });
  refill_spares();
}

void GroupState::add_reports(const wire::Reports& reports) {
  auto* rank = find(reports.token);
  if (!rank) return;
  const auto bytes = rank->inbox.take(reports.bytes);
  if (!rounds_ || reports.generation != generation_) return;
  const int index = index_of(rank);
  // Before anybody can see the round.
  has_made(*rank, reports.step);
  view_->set_round(index, rounds_->reported(index, reports.origin) + static_cast<std::int64_t>(reports.sizes.size()));
  rounds_added(rounds_->add(index, bytes, reports.sizes, {reports.origin, reports.resumed != 0}, Clock::now()));
  check_rounds();
}

void GroupState::rounds_added(const RoundFlow::Added& added) {
  if (added.worked || added.progress) compat::tell(self_, trainer_, local::Progress{generation_, added.progress});
  send_credits(added.credits);
}

void GroupState::check_rounds() {
  if (!rounds_ || machine_->regrouping()) return;  // ranks wait for the one that will take a lost one's place
  if (auto failure = rounds_->check(Clock::now()))
    perform(machine_->fail_attempt(std::move(*failure), Clock::now()));
  else
    arm_timer();
}

void GroupState::give_credit(const local::Consumed& consumed) {
  if (!rounds_ || consumed.generation != generation_) return;
  send_credits(rounds_->consumed(consumed.rounds));
  arm_timer();
}

void GroupState::send_credits(const std::vector<wire::Credit>& credits) {
  for (std::size_t i = 0; i < credits.size(); ++i) compat::tell(self_, ranks_[i].handle, credits[i]);
}

wire::CheckpointPlace GroupState::send_place(const Rank& rank, const detail::CheckpointSource& source) {
  return {source.id, source.iteration, send_blob(self_, rank.handle, rank.token, source.bytes, shared_blob_bytes),
          source.folder, source.files};
}

void GroupState::checkpoint_part(const wire::CheckpointPart& message) {
  auto* rank = find(message.token);
  if (!rank) return;
  auto part = std::make_shared<detail::SavedPart>();
  part->metrics = detail::unpack(rank->inbox.take(message.metrics));
  part->bytes = rank->inbox.take(message.bytes);
  detail::written_from_json(detail::unpack(rank->inbox.take(message.written)), *part);
  if (!run_ || message.generation != generation_) return;
  part->generation = message.generation;
  part->number = message.number;
  part->rank = message.rank;
  part->parts = message.parts;
  part->iteration = message.iteration;
  part->memory = message.memory;
  part->error = message.error;
  compat::tell(self_, checkpoints_, local::PartSaved{std::move(part)});
}

void GroupState::save_over(const local::SaveOver& over) {
  if (!run_ || over.result.generation != generation_) return;
  for (auto& rank : ranks_)
    if (rank.handle)
      compat::tell(self_, rank.handle,
                   wire::CheckpointAnswer{over.result.generation, over.result.number,
                                          send_place(rank, over.result.source), over.result.error});
  if (over.failure) perform(machine_->fail_attempt(*over.failure, Clock::now()));
}

void GroupState::give_up_awaited_parts() {
  if (!run_ || !machine_->regrouping()) return;
  const auto members = machine_->members();
  std::uint64_t awaited = 0;
  for (int index : members)
    if (rank_at(index).token != 0) awaited = std::max(awaited, rank_at(index).awaits);
  if (awaited == 0) return;
  // Who takes a lost one's place goes on behind the saves of the one that waits, and does not make them again.
  for (int lost : lost_ranks_) compat::tell(self_, checkpoints_, local::PartsLost{generation_, lost, 0, awaited});
  // One that was held a step earlier makes them, but only when all go on.
  for (int index : members)
    if (const auto& rank = rank_at(index); rank.joined && rank.saves && *rank.saves < awaited)
      compat::tell(self_, checkpoints_, local::PartsLost{generation_, rank.world_rank, *rank.saves, awaited});
}

void GroupState::rank_done(const wire::RankDone& done) {
  auto* rank = find(done.token);
  if (!rank) return;
  auto payload = rank->inbox.take(done.payload);
  const int index = index_of(rank);
  perform(machine_->came_back(index, /*from_function=*/true));
  if (!run_ || done.generation != generation_) return;
  const auto end = static_cast<engine::RankEnd>(done.end);
  std::optional<Failure> failure;
  if (end == engine::RankEnd::stopped && !payload.empty())
    failure = Failure{FailureKind::worker_lost, ErrorCode::group_lost, index, std::move(payload)};
  else if (end == engine::RankEnd::threw)
    failure = Failure{FailureKind::user_error, static_cast<ErrorCode>(done.code), index, std::move(payload), {},
                      rounds_->reported(index)};
  else if (end == engine::RankEnd::returned) {
    results_.at(static_cast<std::size_t>(index)) = detail::unpack(payload);
    // Ranks that leave because of a notice, or because the group gets smaller, leave where they are.
    if (done.saw_notice == 0 && is_member(index)) rounds_->finish(index);
    check_rounds();
  }
  view_->set_state(index, "ready");
  watch_->ended(index);
  perform(machine_->done(index, end, failure, Clock::now(), done.saw_notice != 0));
}

void GroupState::rank_held(const wire::Held& held) {
  auto* rank = find(held.token);
  if (!rank || !run_ || held.generation != generation_) return;
  rank->saves = held.saves;
  has_made(*rank, held.step);
  view_->set_state(index_of(rank), "held");
  watch_->held(index_of(rank));
  perform(machine_->held(index_of(rank), held.why, held.user_error != 0, Clock::now(), rank->step));
  give_up_awaited_parts();
}

void GroupState::has_made(Rank& rank, std::int64_t step) {
  rank.step = std::max(rank.step, step);
  view_->set_step(index_of(&rank), rank.step);
  if (step > furthest_step_) tell_progress(step);
}

void GroupState::tell_progress(std::int64_t step) {
  compat::tell(self_, trainer_, local::Progress{generation_, step > furthest_step_});
  furthest_step_ = std::max(furthest_step_, step);
}

void GroupState::send_calls() {
  const auto members = machine_->members();
  for (auto& call : calls_->take()) {
    if (call.rank >= static_cast<int>(members.size())) {
      call.fail(ErrorCode::worker_lost, "there is no such worker any more");
      continue;
    }
    auto& rank = rank_at(members[static_cast<std::size_t>(call.rank)]);
    const bool absent = rank.token == 0;
    rank.calls.add(std::move(call));
    if (absent) rank.calls.fail_all(rank.world_rank, "it is lost and was not replaced");
  }
  for (auto& rank : ranks_)
    if (rank.is_set_up) rank.calls.send(self_, rank.handle, rank.token);
  check_calls();
}

void GroupState::check_calls() {
  const bool open = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.calls.empty(); });
  if (open != machine_->has_open_calls()) perform(machine_->calls_open(open, Clock::now()));
}

void GroupState::answer(const wire::Replies& replies) {
  auto* rank = find(replies.token);
  if (!rank) return;
  for (const auto& reply : replies.replies)
    rank->calls.answer(rank->world_rank, reply, rank->inbox.take(reply.payload));
  check_calls();
}

}  // namespace troupe
