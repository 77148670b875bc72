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

class TrainerState {
public:
  static inline const char* const name = "troupe.trainer";
  TrainerState() = default;

  TrainerActor::behavior_type run(TrainerActor::pointer self) {
    self_ = self;
    compat::on_down(self, [this](const caf::down_msg& down) { group_ended(down); });
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
      log_warning("attempt {} failed: rank {} {}; {} in {} ms", attempt, over.failure->rank, over.failure->text,
                  machine_->last_decision().reason, machine_->last_decision().delay.count());
    perform(std::move(actions));
  }

  void perform(engine::RunActions actions) {
    for (auto& action : actions) std::visit([this](auto& one) { act(one); }, action);
    if (machine_ && machine_->deadline())
      compat::remind(self_, std::max<Clock::duration>(*machine_->deadline() - Clock::now(), Clock::duration::zero()),
                     atom::tick_v);
  }

  void act(const engine::BeginAttempt& action) {
    generation_ = next_generation();
    compat::tell(self_, group_, local::BeginAttempt{run_, action.attempt, generation_});
  }
  void act(const engine::StopAttempt& action) { compat::tell(self_, group_, local::StopAttempt{action.at_once}); }
  void act(engine::FinishRun& action) {
    auto run = std::exchange(run_, nullptr);
    run->finish({std::move(action.outcome), std::move(results_)});
    results_.clear();
  }

  void shut_down(const local::ShutDown& down) {
    gone_ = down.gone;
    if (!group_) return finish({});
    compat::tell(self_, group_, local::LeaveGroup{down.patience});
  }

  /// The group went without being asked: its actor failed.
  void group_ended(const caf::down_msg& down) {
    if (!group_ || down.source != group_.address()) return;
    group_ = nullptr;
    if (gone_) return finish({});
    const auto text = fmt::format("the worker group ended: {}", compat::render(self_->system(), down.reason));
    if (auto promise = std::exchange(started_, nullptr))
      promise->set_exception(std::make_exception_ptr(Error(ErrorCode::internal, text)));
    if (auto run = std::exchange(run_, nullptr)) run->finish(failed(text, ErrorCode::internal));
  }

  void finish(const std::vector<int>& stuck_ranks) {
    if (auto run = std::exchange(run_, nullptr))
      run->finish(failed("the trainer was shut down while the run was active", ErrorCode::invalid_state));
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
  std::uint64_t generation_ = 0;
  std::vector<Json> results_;
};

TrainerActor::behavior_type trainer(TrainerActor::stateful_pointer<TrainerState> self, compat::NoArgument) {
  return compat::state_of(self).run(self);
}

}  // namespace

TrainerActor spawn_trainer(caf::actor_system& system) { return system.spawn(trainer, compat::NoArgument{}); }

}  // namespace troupe
