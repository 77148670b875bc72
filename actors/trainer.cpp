// SPDX-License-Identifier: Apache-2.0
// The Trainer actor: carries out what the RunMachine decides, and supervises the WorkerGroup.
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "actors/protocols.hpp"
#include "runtime/base/log.hpp"
#include "runtime/engine/run_machine.hpp"

namespace troupe {
namespace {

using engine::Clock;
using engine::Failure;
using engine::FailureKind;

/// One number an attempt, never used twice in this process.
std::uint64_t next_generation() {
  static std::atomic<std::uint64_t> next{1};
  return next++;
}

std::string in_words(engine::Duration delay) {
  return delay.count() == 0 ? "at once" : fmt::format("in {} ms", delay.count());
}

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
        [this](const local::ShutDown& down) { shut_down(down); },
        [this](const local::GroupUp& up) { group_up(up); },
        [this](const local::AttemptOver& over) { attempt_over(over); },
        [this](const local::RoundsDone& rounds) {
          if (machine_ && rounds.generation == generation_) machine_->progress();
        },
        [this](const local::GroupOver& over) { finish(over.stuck_ranks); },
        [this](const local::AttemptPrepared& prepared) { attempt_prepared(prepared); },
        [this](const local::CheckpointsClosed&) { finish_run(); },
        [this](atom::wake) {
          if (group_) compat::tell(self_, group_, atom::wake_v);
        },
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
    if (!group_) return run->finish(failed("the workers are gone", ErrorCode::invalid_state));
    engine::RetryLimits limits;
    limits.max_retries = spec_->settings.max_retries;
    limits.retry_user_errors = spec_->settings.retry_user_errors;
    run_ = run;
    checkpoints_ = spawn_checkpoints(self_->system(), TrainerActor(self_), group_, run->spec.keeper);
    compat::watch(self_, checkpoints_);
    machine_ = std::make_unique<engine::RunMachine>(limits);
    perform(machine_->begin());
    if (auto early = run->begin()) perform(machine_->stop(early->reason, std::move(early->failure)));
  }

  void attempt_over(const local::AttemptOver& over) {
    if (!run_ || over.generation != generation_) return;
    results_ = over.results;
    const int attempt = machine_->attempt();
    auto actions = machine_->attempt_ended(over.failure, Clock::now());
    if (over.failure && !machine_->finished())
      log_warning("attempt {} failed: rank {} {}; {} {}", attempt, over.failure->rank, over.failure->text,
                  machine_->last_decision().reason, in_words(machine_->last_decision().delay));
    perform(std::move(actions));
  }

  void perform(engine::RunActions actions) {
    for (auto& action : actions) std::visit([this](auto& one) { act(one); }, action);
    if (machine_ && machine_->deadline())
      compat::remind(self_, std::max<Clock::duration>(*machine_->deadline() - Clock::now(), Clock::duration::zero()),
                     atom::tick_v);
  }

  void act(const engine::BeginAttempt&) {
    generation_ = next_generation();
    begun_ = false;
    stop_.reset();
    compat::tell(self_, checkpoints_, local::PrepareAttempt{generation_});
  }
  void act(const engine::StopAttempt& action) {
    stop_ = local::StopAttempt{action.at_once};
    if (begun_) compat::tell(self_, group_, *stop_);
  }
  void act(engine::FinishRun& action) {
    outcome_ = std::move(action.outcome);
    compat::tell(self_, checkpoints_, local::CloseCheckpoints{});
  }

  void attempt_prepared(const local::AttemptPrepared& prepared) {
    if (!run_ || !group_ || gone_ || prepared.setup.generation != generation_) return;
    compat::tell(self_, group_,
                 local::BeginAttempt{run_, machine_->attempt(), generation_, prepared.setup,
                                     caf::actor_cast<caf::strong_actor_ptr>(checkpoints_)});
    begun_ = true;
    if (stop_) compat::tell(self_, group_, *stop_);
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
    if (auto run = std::exchange(run_, nullptr)) run->finish(failed(why, code));
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
    give_up_run("the trainer was shut down while the run was active", ErrorCode::invalid_state);
    if (auto promise = std::exchange(started_, nullptr))
      promise->set_exception(std::make_exception_ptr(Error(ErrorCode::invalid_state, "the trainer was shut down")));
    if (auto promise = std::exchange(gone_, nullptr)) promise->set_value(stuck_ranks);
    group_ = nullptr;
    self_->quit();
  }

  detail::RunResult failed(std::string text, ErrorCode code) const {
    detail::RunResult result;
    result.outcome.status = engine::RunStatus::failed;
    result.outcome.failure = Failure{FailureKind::fatal, code, -1, std::move(text), {}};
    return result;
  }

  TrainerActor::pointer self_ = nullptr;
  WorkerGroupActor group_;
  std::shared_ptr<const local::GroupSpec> spec_;
  std::shared_ptr<std::promise<void>> started_;
  std::shared_ptr<std::promise<std::vector<int>>> gone_;

  // The current run.
  std::shared_ptr<detail::Run> run_;
  std::unique_ptr<engine::RunMachine> machine_;
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
