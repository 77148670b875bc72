// SPDX-License-Identifier: Apache-2.0
// Every actor interface, and the messages that stay inside the driver's process. Table with deadlines: README.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <troupe/call.hpp>

#include "actors/caf_compat.hpp"
#include "actors/messages.hpp"
#include "actors/node/node.hpp"
#include "actors/run.hpp"
#include "checkpoint/saved_part.hpp"
#include "runtime/base/settings.hpp"
#include "runtime/engine/failure.hpp"
#include "runtime/session/checkpoint_client.hpp"

namespace troupe {
namespace local {

using engine::Failure;

/// What a group of workers is made from.
struct GroupSpec {
  detail::Settings settings;
  std::filesystem::path log_folder;      ///< of output before the first run
  std::vector<std::string> environment;  ///< of the driver, where it differs from the fork server's
  std::string working_directory;
  detail::FunctionId hook;
  detail::FunctionId object;
  std::string object_arguments;
};

/// What the user's thread may look at while the group lives.
class GroupView {
public:
  struct Row {
    int pid = -1;
    std::string state = "starting";
    double started_ms = 0;  ///< from launch to ready
  };
  explicit GroupView(int world_size) : rows_(static_cast<std::size_t>(world_size)) {}
  void set(int rank, Row row) {
    std::lock_guard lock(mutex_);
    rows_.at(static_cast<std::size_t>(rank)) = std::move(row);
  }
  void set_state(int rank, const char* state) {
    std::lock_guard lock(mutex_);
    rows_.at(static_cast<std::size_t>(rank)).state = state;
  }
  std::vector<Row> rows() const {
    std::lock_guard lock(mutex_);
    return rows_;
  }
  /// The rank begins an attempt.
  void set_running(int rank) {
    std::lock_guard lock(mutex_);
    auto& row = rows_.at(static_cast<std::size_t>(rank));
    row.state = "running";
    ran_.at(static_cast<std::size_t>(rank)) = row;
  }
  /// The workers of the latest attempt; what became of them since is not told.
  std::vector<Row> ran() const {
    std::lock_guard lock(mutex_);
    return ran_;
  }
  /// A run begins with the workers that are there.
  std::vector<Row> begin_run() {
    std::lock_guard lock(mutex_);
    return ran_ = rows_;
  }

private:
  mutable std::mutex mutex_;
  std::vector<Row> rows_;
  std::vector<Row> ran_;
};

/// One call on a worker, on its way to it.
struct PendingCall {
  int rank = 0;
  detail::FunctionId function;
  std::string arguments;
  detail::CallDone done;
};

/// Calls waiting for the group; one wake a burst.
class CallQueue {
public:
  /// True when the queue was empty: the group must be woken.
  bool push(PendingCall call) {
    std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    return calls_.size() == 1;
  }
  std::vector<PendingCall> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(calls_, {});
  }

private:
  std::mutex mutex_;
  std::vector<PendingCall> calls_;
};

// Trainer's commands.
struct StartGroup {
  std::shared_ptr<const GroupSpec> spec;
  std::shared_ptr<GroupView> view;
  std::shared_ptr<CallQueue> calls;
  std::shared_ptr<std::promise<void>> started;
};
struct BeginRun {
  std::shared_ptr<detail::Run> run;
};
struct StopRun {
  std::shared_ptr<detail::Run> run;
  engine::StopReason reason;
  std::optional<Failure> failure;
};
struct ShutDown {
  engine::Duration patience;
  std::shared_ptr<std::promise<std::vector<int>>> gone;  ///< ranks that did not stop
};
/// Credit on its way from the consumer to the workers.
struct Consumed {
  std::uint64_t generation;
  std::uint32_t rounds;
};

// Trainer to group.
struct BeginAttempt {
  std::shared_ptr<detail::Run> run;
  int attempt;
  std::uint64_t generation;
  detail::CheckpointSetup checkpoint_setup;
  caf::strong_actor_ptr checkpoints;  ///< the run's CHECKPOINTS
};
struct StopAttempt {
  bool at_once;
};
struct LeaveGroup {
  engine::Duration patience;
};

// Group to trainer.
struct GroupUp {
  std::optional<Failure> failure;
};
struct AttemptOver {
  std::uint64_t generation;
  std::optional<Failure> failure;
  std::vector<Json> results;
};
struct RoundsDone {
  std::uint64_t generation;
};
struct GroupOver {
  std::vector<int> stuck_ranks;
};

// Trainer to checkpoints, and back.
struct PrepareAttempt {
  std::uint64_t generation;
};
struct AttemptPrepared {
  detail::CheckpointSetup setup;
};
/// No more will come.
struct CloseCheckpoints {};
struct CheckpointsClosed {};

// Group to checkpoints, and back.
struct PartSaved {
  std::shared_ptr<detail::SavedPart> part;
};
struct SaveOver {
  detail::SaveResult result;
  std::optional<Failure> failure;  ///< ends the run
};

// Node to group.
struct ProcessNews {
  node::Token token;
  node::ProcessEvent event;
};
/// All output of the group so far was printed.
struct Drained {
  std::uint64_t ticket;
};
/// The worker's connection broke a while ago: its process must be gone by now.
struct ReapCheck {
  std::uint64_t token;
};

}  // namespace local

// Names are written into no file and sent to no other version: append only all the same.
}  // namespace troupe

// NOLINTBEGIN(readability-identifier-naming): CAF's macros name them
CAF_BEGIN_TYPE_ID_BLOCK(troupe, caf::first_custom_type_id)
CAF_ADD_TYPE_ID(troupe, (troupe::wire::BlobPart))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Registration))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Setup))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::SetupDone))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::RunRequest))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Reports))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Credit))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Halt))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::RankDone))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Calls))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Replies))
CAF_ADD_ATOM(troupe, troupe::atom, leave, "trp-leave")
CAF_ADD_ATOM(troupe, troupe::atom, wake, "trp-wake")
CAF_ADD_ATOM(troupe, troupe::atom, tick, "trp-tick")
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Form))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::FormDone))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::StoreRequest))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::StoreAnswer))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::CheckpointPart))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::CheckpointAnswer))
#if !TROUPE_CAF_LEGACY
CAF_ADD_TYPE_ID(troupe, (troupe::local::StartGroup))
CAF_ADD_TYPE_ID(troupe, (troupe::local::BeginRun))
CAF_ADD_TYPE_ID(troupe, (troupe::local::StopRun))
CAF_ADD_TYPE_ID(troupe, (troupe::local::ShutDown))
CAF_ADD_TYPE_ID(troupe, (troupe::local::Consumed))
CAF_ADD_TYPE_ID(troupe, (troupe::local::BeginAttempt))
CAF_ADD_TYPE_ID(troupe, (troupe::local::StopAttempt))
CAF_ADD_TYPE_ID(troupe, (troupe::local::LeaveGroup))
CAF_ADD_TYPE_ID(troupe, (troupe::local::GroupUp))
CAF_ADD_TYPE_ID(troupe, (troupe::local::AttemptOver))
CAF_ADD_TYPE_ID(troupe, (troupe::local::RoundsDone))
CAF_ADD_TYPE_ID(troupe, (troupe::local::GroupOver))
CAF_ADD_TYPE_ID(troupe, (troupe::local::PrepareAttempt))
CAF_ADD_TYPE_ID(troupe, (troupe::local::AttemptPrepared))
CAF_ADD_TYPE_ID(troupe, (troupe::local::CloseCheckpoints))
CAF_ADD_TYPE_ID(troupe, (troupe::local::CheckpointsClosed))
CAF_ADD_TYPE_ID(troupe, (troupe::local::PartSaved))
CAF_ADD_TYPE_ID(troupe, (troupe::local::SaveOver))
CAF_ADD_TYPE_ID(troupe, (troupe::local::ProcessNews))
CAF_ADD_TYPE_ID(troupe, (troupe::local::Drained))
CAF_ADD_TYPE_ID(troupe, (troupe::local::ReapCheck))
#endif
CAF_END_TYPE_ID_BLOCK(troupe)
// NOLINTEND(readability-identifier-naming)

// These never leave the process: they hold promises, callbacks and shared objects.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::StartGroup)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::BeginRun)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::StopRun)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::ShutDown)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::Consumed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::BeginAttempt)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::StopAttempt)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::LeaveGroup)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::GroupUp)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::AttemptOver)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::RoundsDone)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::GroupOver)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::PrepareAttempt)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::AttemptPrepared)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::CloseCheckpoints)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::CheckpointsClosed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::PartSaved)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::SaveOver)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::ProcessNews)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::Drained)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::ReapCheck)

namespace troupe {

/// The WORKER: one per rank, in the rank's process; owns the thread that runs user code, never blocks.
using WorkerActor = caf::typed_actor<
    // A piece of a value in the message that follows.
    compat::on<wire::BlobPart>::no_reply,
    // Prepares hook and object; the pointer is the group's STORE. Answers SetupDone.
    compat::on<wire::Setup, caf::strong_actor_ptr>::no_reply,
    // Forms the process group with all other ranks; answers FormDone.
    compat::on<wire::Form>::no_reply,
    // Answer of the STORE.
    compat::on<wire::StoreAnswer>::no_reply,
    // Runs the function; Reports and one RankDone follow.
    compat::on<wire::RunRequest>::no_reply,
    // Gives report credit back.
    compat::on<wire::Credit>::no_reply,
    // What became of a checkpoint.
    compat::on<wire::CheckpointAnswer>::no_reply,
    // Stops the run of that generation (0: forming), and ends pending collectives.
    compat::on<wire::Halt>::no_reply,
    // Calls on the object; Replies follow in order.
    compat::on<wire::Calls>::no_reply,
    // Stops everything, takes the backend down, ends.
    compat::on<atom::leave>::no_reply,
    // From its own threads: there is something to send.
    compat::on<atom::wake>::no_reply>;

/// The WORKER GROUP: places ranks, lines reports up by round, replaces the dead.
using WorkerGroupActor = caf::typed_actor<
    // A worker process is there; the pointer is its WORKER.
    compat::on<wire::Registration, caf::strong_actor_ptr>::no_reply,
    // A piece of a value in the message that follows.
    compat::on<wire::BlobPart>::no_reply,
    // A worker is prepared, or could not be.
    compat::on<wire::SetupDone>::no_reply,
    // A worker has formed the process group, or could not.
    compat::on<wire::FormDone>::no_reply,
    // Reports of one rank.
    compat::on<wire::Reports>::no_reply,
    // One rank's part of a checkpoint; a CheckpointAnswer to all ranks follows.
    compat::on<wire::CheckpointPart>::no_reply,
    // The function ended on one rank.
    compat::on<wire::RankDone>::no_reply,
    // Answers to calls.
    compat::on<wire::Replies>::no_reply,
    // Runs the function on all ranks, once all are up; one AttemptOver follows.
    compat::on<local::BeginAttempt>::no_reply,
    // Ends the attempt.
    compat::on<local::StopAttempt>::no_reply,
    // Ends all workers and then itself; one GroupOver follows.
    compat::on<local::LeaveGroup>::no_reply,
    // Credit from the consumer.
    compat::on<local::Consumed>::no_reply,
    // What became of a checkpoint.
    compat::on<local::SaveOver>::no_reply,
    // What happened to a worker process.
    compat::on<local::ProcessNews>::no_reply,
    // Output was printed.
    compat::on<local::Drained>::no_reply,
    // Makes sure that a disconnected process ends.
    compat::on<local::ReapCheck>::no_reply,
    // The call queue is no longer empty.
    compat::on<atom::wake>::no_reply,
    // A deadline may have passed.
    compat::on<atom::tick>::no_reply>;

/// The STORE: the keys through which the workers of a group find each other.
using StoreActor = caf::typed_actor<
    // Answers StoreAnswer to the sender, at once or when the keys are there.
    compat::on<wire::StoreRequest>::no_reply,
    // A deadline may have passed.
    compat::on<atom::tick>::no_reply>;

/// The CHECKPOINTS of one run: commits what the ranks saved, on a thread of its own.
using CheckpointsActor = caf::typed_actor<
    // Drops what earlier attempts have not completed; answers AttemptPrepared to the TRAINER.
    compat::on<local::PrepareAttempt>::no_reply,
    // A rank's part; one SaveOver to the group when the checkpoint is complete.
    compat::on<local::PartSaved>::no_reply,
    // Ends it; CheckpointsClosed to the TRAINER when everything is done.
    compat::on<local::CloseCheckpoints>::no_reply>;

/// The TRAINER: the runs of one troupe::Trainer; supervises the WORKER GROUP and the CHECKPOINTS of the current run.
using TrainerActor = caf::typed_actor<
    // Makes the group; the promise is kept when all workers are up.
    compat::on<local::StartGroup>::no_reply,
    // Begins a run.
    compat::on<local::BeginRun>::no_reply,
    // Ends it early.
    compat::on<local::StopRun>::no_reply,
    // Credit on its way to the group.
    compat::on<local::Consumed>::no_reply,
    // Ends the group and then itself.
    compat::on<local::ShutDown>::no_reply,
    // News of the group.
    compat::on<local::GroupUp>::no_reply, compat::on<local::AttemptOver>::no_reply,
    compat::on<local::RoundsDone>::no_reply, compat::on<local::GroupOver>::no_reply,
    // News of the checkpoints.
    compat::on<local::AttemptPrepared>::no_reply, compat::on<local::CheckpointsClosed>::no_reply,
    // Wakes the group for calls.
    compat::on<atom::wake>::no_reply,
    // A deadline may have passed.
    compat::on<atom::tick>::no_reply>;

/// Worker of a process (process placement) or of a thread rank.
/// `descriptors` is its channel to the Node, -1 for a thread rank.
WorkerActor spawn_worker(caf::actor_system& system, WorkerGroupActor group, std::uint64_t token, int descriptors);
StoreActor spawn_store(caf::actor_system& system);
CheckpointsActor spawn_checkpoints(caf::actor_system& system, TrainerActor trainer, WorkerGroupActor group,
                                   std::shared_ptr<detail::CheckpointKeeper> keeper);
WorkerGroupActor spawn_worker_group(caf::actor_system& system, TrainerActor trainer,
                                    std::shared_ptr<const local::GroupSpec> spec,
                                    std::shared_ptr<local::GroupView> view, std::shared_ptr<local::CallQueue> calls);
TrainerActor spawn_trainer(caf::actor_system& system);

}  // namespace troupe
