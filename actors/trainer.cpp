// SPDX-License-Identifier: Apache-2.0
// The Trainer actor: carries out what the RunMachine decides, and supervises the WorkerGroup.
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "actors/protocols.hpp"
#include "actors/run_journal.hpp"
#include "runtime/base/log.hpp"
#include "runtime/engine/run_machine.hpp"

namespace troupe {
namespace {

using engine::Clock;

class TrainerState {
public:
  static inline const char* const name = "troupe.trainer";
  TrainerState() = default;

  TrainerActor::behavior_type run(TrainerActor::pointer self) {
    self_ = self;
    compat::on_down(self, [this](const caf::down_msg& down) { someone_ended(down); });
    compat::on_exit(self, [this](const caf::exit_msg& exit) {
      if (!group_ || exit.source != group_.address()) self_->quit(exit.reason);
    });
    compat::on_exception(self, [](const char* text) { log_error("trainer failed: {}", text); });
    return {
        [this](const local::StartGroup& start) { start_group(start); },
        [this](const local::BeginRun& begin) { begin_run(begin.run); },
        [this](const local::StopRun& stop) {
          if (run_ && run_ == stop.run) perform(machine_->stop(stop.reason, stop.failure));
        },
        [this](const local::Consumed& consumed) {
          if (group_) compat::tell(self_, group_, consumed);
        },
        [this](const local::Resize& resize) {
          if (group_) compat::tell(self_, group_, resize);
        },
        [this](const local::Preempt& preempt) {
          if (group_) compat::tell(self_, group_, preempt);
        },
        [this](const local::AskToGoOn& ask) { ask_to_go_on(ask); },
        [this](const local::ShutDown& down) { shut_down(down); },
        [this](const local::GroupUp& up) { group_up(up); },
        [this](const local::AttemptOver& over) { attempt_over(over); },
        [this](const local::Progress& progress) {
          if (!machine_ || progress.generation != generation_) return;
          machine_->worked();
          if (progress.is_new) machine_->progress();
        },
        [this](const local::WentOn& went_on) {
          if (machine_ && went_on.generation == generation_) machine_->went_on();
        },
        [this](const local::GroupDecided& decided) { group_decided(decided.decision); },
        [this](const local::GroupOver& over) { finish(over.stuck_ranks); },
        [this](const local::AttemptPrepared& prepared) { attempt_prepared(prepared); },
        [this](const local::CheckpointsClosed& closed) { checkpoints_closed(closed); },
        [this](atom::tick) {
          if (machine_) perform(machine_->tick(Clock::now()));
        },
    };
  }

private:
  void start_group(const local::StartGroup& start) {
    spec_ = start.spec;
    started_ = start.started;
    group_ = spawn_worker_group(self_->system(), TrainerActor(self_), start.spec, start.view, start.calls);
    compat::watch(self_, group_);
    self_->link_to(group_);
  }

  void group_up(const local::GroupUp& up) {
    auto promise = std::exchange(started_, nullptr);
    if (!promise) return;
    if (!up.failure) return promise->set_value();
    promise->set_exception(
        std::make_exception_ptr(Error(up.failure->code, up.failure->text,
                                      up.failure->rank < 0 ? std::nullopt : std::optional<int>(up.failure->rank))));
  }

  void begin_run(const std::shared_ptr<detail::Run>& run) {
    if (!group_) return run->finish(detail::failed_run(ErrorCode::invalid_state, "the workers are gone"));
    try {
      checkpoints_ =
          spawn_checkpoints(self_->system(), TrainerActor(self_), group_, run->spec.keeper, run->spec.journal);
    } catch (const Error& error) {
      return run->finish(detail::failed_run(error.code(), error.what()));
    }
    run_ = run;
    compat::watch(self_, checkpoints_);
    machine_ = std::make_unique<engine::RunMachine>(engine::retry_limits(spec_->settings));
    const auto& before = run->spec.journal->history();
    machine_->go_on_after(before.attempts, before.decisions, before.before_progress);
    decisions_told_ = machine_->decisions().size();
    perform(machine_->begin(Clock::now()));
    if (auto early = run->begin()) perform(machine_->stop(early->reason, std::move(early->failure)));
  }

  void attempt_over(const local::AttemptOver& over) {
    if (!run_ || over.generation != generation_) return;
    results_ = over.results;
    auto actions = machine_->attempt_ended(over.failure, Clock::now());
    tell_decisions();
    perform(std::move(actions));
  }

  void ask_to_go_on(const local::AskToGoOn& ask) {
    if (!run_ || ask.generation != generation_) return;
    auto actions = machine_->damaged(ask.failure, Clock::now());
    tell_decisions();
    perform(std::move(actions));
  }

  /// Outside a run it is told all the same.
  void group_decided(const engine::Decision& decision) {
    if (!run_ || machine_->finished()) return log_warning("{}", to_string(decision));
    machine_->note(decision);
    tell_decisions();
  }

  /// Each in one line, and to the journal.
  void tell_decisions() {
    for (; decisions_told_ < machine_->decisions().size(); ++decisions_told_) {
      const auto& decision = machine_->decisions()[decisions_told_];
      log_warning("{}", to_string(decision));
      compat::tell(self_, checkpoints_, local::Decided{generation_, decision});
    }
  }

  void show(const char* state) {
    if (run_) run_->view->set({state, machine_->attempt(), generation_, machine_->restarts()});
  }

  void perform(engine::RunActions actions) {
    for (auto& action : actions) std::visit([this](auto& one) { act(one); }, action);
    if (actions.empty() && machine_ && machine_->deadline()) show("waiting");
    if (machine_ && machine_->deadline())
      compat::remind(self_, std::max<Clock::duration>(*machine_->deadline() - Clock::now(), Clock::duration::zero()),
                     atom::tick_v);
  }

  void act(const engine::BeginAttempt&) {
    generation_ = run_->spec.journal->next_generation();
    begun_ = false;
    stop_.reset();
    show("running");
    compat::tell(self_, checkpoints_, local::PrepareAttempt{generation_, machine_->attempt()});
  }
  void act(const engine::StopAttempt& action) {
    stop_ = local::StopAttempt{action.at_once};
    show("stopping");
    if (begun_) compat::tell(self_, group_, *stop_);
  }
  void act(const engine::GoOn&) {
    show("running");
    compat::tell(self_, group_, local::GoOn{generation_, true});
  }
  void act(const engine::FailAttempt&) { compat::tell(self_, group_, local::GoOn{generation_, false}); }
  void act(engine::FinishRun& action) {
    outcome_ = std::move(action.outcome);
    compat::tell(self_, checkpoints_, local::CloseCheckpoints{});
  }

  void attempt_prepared(const local::AttemptPrepared& prepared) {
    if (!run_ || !group_ || gone_ || prepared.setup.generation != generation_) return;
    if (prepared.failure) {
      auto actions = machine_->attempt_ended(prepared.failure, Clock::now());
      tell_decisions();
      return perform(std::move(actions));
    }
    compat::tell(self_, group_,
                 local::BeginAttempt{run_, machine_->attempt(), generation_, prepared.setup,
                                     caf::actor_cast<caf::strong_actor_ptr>(checkpoints_)});
    begun_ = true;
    if (stop_) compat::tell(self_, group_, *stop_);
  }

  void checkpoints_closed(const local::CheckpointsClosed& closed) {
    if (closed.failure && outcome_ && outcome_->status == engine::RunStatus::succeeded) {
      outcome_->status = engine::RunStatus::failed;
      outcome_->failure = closed.failure;
    }
    finish_run();
  }

  /// All checkpoints are where they belong.
  void finish_run() {
    checkpoints_ = nullptr;
    auto run = std::exchange(run_, nullptr);
    auto outcome = std::exchange(outcome_, std::nullopt);
    if (run && outcome) run->finish({std::move(*outcome), std::exchange(results_, {})});
  }

  /// The run ends now, whatever its checkpoints still do.
  void give_up_run(const std::string& why, ErrorCode code) {
    if (auto checkpoints = std::exchange(checkpoints_, nullptr))
      compat::tell(self_, checkpoints, local::CloseCheckpoints{});
    if (outcome_) return finish_run();
    machine_.reset();  // it may have been about to begin an attempt
    if (group_ && run_) compat::tell(self_, group_, local::StopAttempt{true});
    if (auto run = std::exchange(run_, nullptr)) run->finish(detail::failed_run(code, why));
  }

  void shut_down(const local::ShutDown& down) {
    gone_ = down.gone;
    if (!group_) return finish({});
    compat::tell(self_, group_, local::LeaveGroup{down.patience});
  }

  /// The group or the checkpoints went without being asked: their actor failed.
  void someone_ended(const caf::down_msg& down) {
    if (checkpoints_ && down.source == checkpoints_.address()) {
      checkpoints_ = nullptr;
      return give_up_run("the keeper of the checkpoints ended: " + compat::render(self_->system(), down.reason),
                         ErrorCode::internal);
    }
    if (!group_ || down.source != group_.address()) return;
    group_ = nullptr;
    if (gone_) return finish({});
    const auto text = fmt::format("the worker group ended: {}", compat::render(self_->system(), down.reason));
    if (auto promise = std::exchange(started_, nullptr))
      promise->set_exception(std::make_exception_ptr(Error(ErrorCode::internal, text)));
    give_up_run(text, ErrorCode::internal);
  }

  void finish(const std::vector<int>& stuck_ranks) {
    give_up_run(detail::shut_down_text, ErrorCode::invalid_state);
    if (auto promise = std::exchange(started_, nullptr))
      promise->set_exception(std::make_exception_ptr(Error(ErrorCode::invalid_state, "the trainer was shut down")));
    if (auto promise = std::exchange(gone_, nullptr)) promise->set_value(stuck_ranks);
    group_ = nullptr;
    self_->quit();
  }

  TrainerActor::pointer self_ = nullptr;
  WorkerGroupActor group_;
  std::shared_ptr<const local::GroupSpec> spec_;
  std::shared_ptr<std::promise<void>> started_;
  std::shared_ptr<std::promise<std::vector<int>>> gone_;

  // The current run.
  std::shared_ptr<detail::Run> run_;
  std::unique_ptr<engine::RunMachine> machine_;
  std::size_t decisions_told_ = 0;
  CheckpointsActor checkpoints_;
  std::uint64_t generation_ = 0;
  bool begun_ = false;                      // the group was told of the attempt
  std::optional<local::StopAttempt> stop_;  // asked for in this attempt
  std::vector<Json> results_;
  std::optional<engine::RunOutcome> outcome_;
};

TrainerActor::behavior_type trainer(TrainerActor::stateful_pointer<TrainerState> self, compat::NoArgument) {
  return compat::state_of(self).run(self);
}

}  // namespace

TrainerActor spawn_trainer(caf::actor_system& system) { return system.spawn(trainer, compat::NoArgument{}); }

}  // namespace troupe
