// SPDX-License-Identifier: Apache-2.0
// The Checkpoints actor: hands what the ranks saved to the run's keeper. It has a thread of its own, since the keeper
// writes and waits for the disk.
#include <utility>

#include "actors/protocols.hpp"
#include "checkpoint/keeper.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace {

std::optional<engine::Failure> failure_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return engine::Failure{engine::FailureKind::fatal, ErrorCode::invalid_option, -1, text, {}};
}

class CheckpointsState {
public:
  static inline const char* const name = "troupe.checkpoints";
  CheckpointsState() = default;

  CheckpointsActor::behavior_type run(CheckpointsActor::pointer self, TrainerActor trainer, WorkerGroupActor group,
                                      std::shared_ptr<detail::CheckpointKeeper> keeper) {
    self_ = self;
    trainer_ = std::move(trainer);
    group_ = std::move(group);
    keeper_ = std::move(keeper);
    compat::on_exception(self, [](const char* text) { log_error("the keeper of checkpoints failed: {}", text); });
    return {
        [this](const local::PrepareAttempt& prepare) {
          compat::tell(self_, trainer_, local::AttemptPrepared{keeper_->begin_attempt(prepare.generation)});
        },
        [this](const local::PartSaved& saved) {
          for (auto& over : keeper_->add(std::move(*saved.part)))
            compat::tell(self_, group_, local::SaveOver{std::move(over.result), failure_of(over.fatal)});
        },
        [this](const local::CloseCheckpoints&) {
          keeper_->close();
          compat::tell(self_, trainer_, local::CheckpointsClosed{});
          self_->quit();
        },
    };
  }

private:
  CheckpointsActor::pointer self_ = nullptr;
  TrainerActor trainer_;
  WorkerGroupActor group_;
  std::shared_ptr<detail::CheckpointKeeper> keeper_;
};

CheckpointsActor::behavior_type checkpoints(CheckpointsActor::stateful_pointer<CheckpointsState> self,
                                            TrainerActor trainer, WorkerGroupActor group,
                                            std::shared_ptr<detail::CheckpointKeeper> keeper) {
  return compat::state_of(self).run(self, std::move(trainer), std::move(group), std::move(keeper));
}

}  // namespace

CheckpointsActor spawn_checkpoints(caf::actor_system& system, TrainerActor trainer, WorkerGroupActor group,
                                   std::shared_ptr<detail::CheckpointKeeper> keeper) {
  return system.spawn<caf::detached>(checkpoints, std::move(trainer), std::move(group), std::move(keeper));
}

}  // namespace troupe
