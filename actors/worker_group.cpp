// SPDX-License-Identifier: Apache-2.0
// The WorkerGroup actor: what it listens to. See group_state.hpp.
#include <signal.h>

#include <atomic>
#include <utility>

#include "actors/group_state.hpp"

namespace troupe {
namespace {

std::uint64_t next_group_number() {
  static std::atomic<std::uint64_t> next{1};
  return next++;
}

}  // namespace

WorkerGroupActor::behavior_type GroupState::run(WorkerGroupActor::pointer self, TrainerActor trainer,
                                                std::shared_ptr<const local::GroupSpec> spec,
                                                std::shared_ptr<GroupView> view,
                                                std::shared_ptr<local::CallQueue> calls) {
  self_ = self;
  trainer_ = std::move(trainer);
  spec_ = std::move(spec);
  view_ = std::move(view);
  calls_ = std::move(calls);
  number_ = next_group_number();
  const auto& settings = spec_->settings;
  in_processes_ = settings.placement == Placement::process;
  ranks_.resize(static_cast<std::size_t>(settings.max_workers));
  for (auto& rank : ranks_) rank.world_rank = index_of(&rank);
  machine_ =
      std::make_unique<engine::GroupMachine>(engine::GroupLimits{.world_size = settings.world_size,
                                                                 .start_deadline = settings.worker_start_deadline,
                                                                 .stop_deadline = settings.shutdown_deadline,
                                                                 .can_kill = in_processes_,
                                                                 .forms_group = !settings.backend.name.empty(),
                                                                 .min_workers = settings.min_workers,
                                                                 .max_workers = settings.max_workers,
                                                                 .rejoin_deadline = settings.rejoin_deadline,
                                                                 .spares = in_processes_ ? settings.spares : 0});
  spares_.emplace(in_processes_ ? settings.spares : 0);
  // Threads of one process are silent only together with us.
  const auto ping_deadline = in_processes_ ? settings.ping_deadline : engine::Duration::zero();
  watch_ = std::make_unique<engine::RankWatch>(
      engine::WatchLimits{{settings.max_workers, settings.stopped_grace, settings.ping_interval, ping_deadline},
                          settings.progress_deadline,
                          settings.replace_stragglers && in_processes_},
      [this](int place) { return rank_at(place).world_rank; });
  store_ = spawn_store(self->system());
  self->link_to(store_);
  compat::on_down(self, [this](const caf::down_msg& down) { someone_ended(down); });
  compat::on_exit(self, [this](const caf::exit_msg& exit) {
    if (exit.source == trainer_.address()) trainer_ended();  // linked workers are told of by the down handler
  });
  compat::on_exception(self, [](const char* text) { log_error("worker group failed: {}", text); });
  // By a weak address: who pokes the group does not keep it alive.
  const auto poke = [address = caf::actor_cast<caf::actor_addr>(self)](auto what) {
    return [address, what] {
      if (auto group = caf::actor_cast<WorkerGroupActor>(address)) compat::post(group, what);
    };
  };
  spec_->cpus->on_room(poke(atom::room_v));
  calls_->open(poke(atom::wake_v));
  perform(machine_->start(Clock::now()));
  return {
      [this](const wire::Registration& registration, const caf::strong_actor_ptr& who) { enlist(registration, who); },
      [this](const wire::BlobPart& part) {
        if (auto* rank = find(part.token)) rank->inbox.add(part);
      },
      [this](const wire::SetupDone& done) { setup_done(done); },
      [this](const wire::FormDone& done) { form_done(done); },
      [this](const wire::Reports& reports) { add_reports(reports); },
      [this](const wire::CheckpointPart& part) { checkpoint_part(part); },
      [this](const wire::AwaitsSave& awaits) {
        auto* rank = find(awaits.token);
        if (!rank || awaits.generation != generation_) return;
        rank->awaits = awaits.number;
        give_up_awaited_parts();
      },
      [this](const wire::Saving& saving) {
        if (auto* rank = find(saving.token); rank && saving.generation == generation_) machine_->saving(index_of(rank));
      },
      [this](const wire::RankDone& done) { rank_done(done); },
      [this](const wire::Live& live) {
        auto* rank = find(live.token);
        if (!rank || live.generation != generation_) return;
        compat::tell(self_, rank->handle, live);
        perform(machine_->live(index_of(rank), live.live != 0, Clock::now()));
      },
      [this](const wire::Progress& progress) {
        if (!run_ || progress.generation != generation_) return;
        // Not earlier: those that met may find that they cannot go on together.
        if (std::exchange(mending_, false)) compat::tell(self_, trainer_, local::WentOn{generation_});
        tell_progress(progress.step);
      },
      [this](const wire::Held& held) { rank_held(held); },
      [this](const wire::Preempted& preempted) {
        if (spares_->find(preempted.token)) return end_spare(preempted.token);
        if (auto* rank = find(preempted.token)) preempt(index_of(rank), spec_->settings.preemption_grace);
      },
      [this](const wire::Replies& replies) { answer(replies); },
      [this](const wire::Pong& pong) { answered(pong); },
      [this](const local::BeginAttempt& begin) { begin_attempt(begin); },
      [this](const local::StopAttempt& stop) {
        drain_.limit(stop.at_once ? engine::Duration::zero() : spec_->settings.shutdown_deadline, Clock::now());
        perform(machine_->stop_attempt(stop.at_once, Clock::now()));
      },
      [this](const local::GoOn& go_on) {
        if (go_on.generation != generation_) return;
        const auto asked = std::exchange(asked_, std::nullopt);
        if (asked)
          perform(go_on.granted ? machine_->go_on(Clock::now()) : machine_->fail_attempt(*asked, Clock::now()));
      },
      [this](const local::Resize& resize) { perform(machine_->resize(resize.world_size, Clock::now())); },
      [this](atom::room) { perform_with_room([this](Clock::time_point now) { return machine_->use_room(now); }); },
      [this](const local::Preempt& request) {
        const auto members = machine_->members();
        if (request.rank < static_cast<int>(members.size()))
          preempt(members[static_cast<std::size_t>(request.rank)], request.within);
      },
      [this](const local::LeaveGroup& message) { leave(message.patience); },
      [this](const local::Consumed& consumed) { give_credit(consumed); },
      [this](const local::SaveOver& over) { save_over(over); },
      [this](const local::ProcessNews& news) { process_news(news); },
      [this](const local::Drained& drained) { drain_.drained(drained.ticket); },
      [this](const local::ReapCheck& check) {
        if (find(check.token)) node::Node::instance().signal(check.token, SIGKILL);
      },
      [this](atom::wake) { send_calls(); },
      [this](atom::tick) {
        armed_.reset();
        if (refill_at_ && Clock::now() >= *refill_at_) refill_spares();
        check_rounds();
        check_watch();
        perform_with_room([this](Clock::time_point now) { return machine_->tick(now); });
        drain_.tick(Clock::now());
      },
  };
}

WorkerGroupActor spawn_worker_group(caf::actor_system& system, TrainerActor trainer,
                                    std::shared_ptr<const local::GroupSpec> spec, std::shared_ptr<GroupView> view,
                                    std::shared_ptr<local::CallQueue> calls) {
  return compat::spawn_beside_io<WorkerGroupActor, GroupState>(system, std::move(trainer), std::move(spec),
                                                               std::move(view), std::move(calls));
}

}  // namespace troupe
