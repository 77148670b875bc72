// SPDX-License-Identifier: Apache-2.0
// The Checkpoints actor: hands what the ranks saved to the run's keeper. It has a thread of its own, since the keeper
// writes and waits for the disk.
#include <optional>
#include <utility>

#include "actors/protocols.hpp"
#include "actors/run_journal.hpp"
#include "checkpoint/keeper.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/make_thread.hpp"
#include "runtime/base/thread_turns.hpp"

namespace troupe {
namespace {

/// Another program drives the run now, or the options do not fit what the function saves.
std::optional<engine::Failure> failure_of(const std::string& text, const detail::RunJournal& journal) {
  if (text.empty()) return std::nullopt;
  const auto code = text == journal.why_lost() ? ErrorCode::invalid_state : ErrorCode::invalid_option;
  return engine::Failure{engine::FailureKind::fatal, code, -1, text, {}};
}

class CheckpointsState {
public:
  static inline const char* const name = "troupe.checkpoints";
  CheckpointsState() = default;

  CheckpointsActor::behavior_type run(CheckpointsActor::pointer self, TrainerActor trainer, WorkerGroupActor group,
                                      std::shared_ptr<detail::CheckpointKeeper> keeper,
                                      std::shared_ptr<detail::RunJournal> journal) {
    self_ = self;
    trainer_ = std::move(trainer);
    group_ = std::move(group);
    keeper_ = std::move(keeper);
    journal_ = std::move(journal);
    compat::on_exception(self, [](const char* text) { log_error("the keeper of checkpoints failed: {}", text); });
    return {
        [this](const local::PrepareAttempt& prepare) {
          journal_->attempt_begins(prepare.generation, prepare.attempt);
          compat::tell(self_, trainer_, prepared(prepare.generation));
        },
        [this](const local::Decided& decided) { journal_->decided(decided.generation, decided.decision); },
        [this](const local::PartSaved& saved) { tell(keeper_->add(std::move(*saved.part))); },
        [this](const local::PartsLost& lost) {
          tell(keeper_->give_up_parts(lost.generation, lost.rank, {lost.after, lost.up_to}));
        },
        [this](const local::CloseCheckpoints&) {
          keeper_->close();
          compat::tell(self_, trainer_, local::CheckpointsClosed{failure_});
          self_->quit();
        },
    };
  }

private:
  local::AttemptPrepared prepared(std::uint64_t generation) {
    local::AttemptPrepared answer;
    answer.setup.generation = generation;
    try {
      answer.setup = keeper_->begin_attempt(generation);
    } catch (const Error& error) {
      answer.failure = engine::Failure{engine::FailureKind::fatal, error.code(), -1, error.what(), {}};
    }
    return answer;
  }

  void tell(std::vector<detail::CheckpointKeeper::Over> decided) {
    for (auto& over : decided) {
      if (over.result.source)
        compat::tell(
            self_, trainer_,
            local::Progress{over.result.generation, detail::is_further(over.result.source.iteration, furthest_)});
      auto failure = failure_of(over.fatal, *journal_);
      if (!failure_) failure_ = failure;
      compat::tell(self_, group_, local::SaveOver{std::move(over.result), std::move(failure)});
    }
  }

  CheckpointsActor::pointer self_ = nullptr;
  TrainerActor trainer_;
  WorkerGroupActor group_;
  std::shared_ptr<detail::CheckpointKeeper> keeper_;
  std::shared_ptr<detail::RunJournal> journal_;
  std::int64_t furthest_ = 0;               // iteration that was committed
  std::optional<engine::Failure> failure_;  // the first: the function may have ended before it was known
};

CheckpointsActor::behavior_type checkpoints(CheckpointsActor::stateful_pointer<CheckpointsState> self,
                                            TrainerActor trainer, WorkerGroupActor group,
                                            std::shared_ptr<detail::CheckpointKeeper> keeper,
                                            std::shared_ptr<detail::RunJournal> journal) {
  detail::take_usual_turns();  // it writes gigabytes
  return compat::state_of(self).run(self, std::move(trainer), std::move(group), std::move(keeper), std::move(journal));
}

}  // namespace

CheckpointsActor spawn_checkpoints(caf::actor_system& system, TrainerActor trainer, WorkerGroupActor group,
                                   std::shared_ptr<detail::CheckpointKeeper> keeper,
                                   std::shared_ptr<detail::RunJournal> journal) {
  // CAF counts a thread of an actor before it has it, and a system waits for all of them at its end: if there is none,
  // that is found here.
  detail::make_thread("that commits checkpoints", [] {}).join();
  return system.spawn<caf::detached>(checkpoints, std::move(trainer), std::move(group), std::move(keeper),
                                     std::move(journal));
}

}  // namespace troupe
