// SPDX-License-Identifier: Apache-2.0
// Every actor interface, and the messages that stay inside the driver's process. Table with deadlines: README.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "actors/caf_compat.hpp"
#include "actors/call_queue.hpp"
#include "actors/cpu_ledger.hpp"
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
  std::shared_ptr<CpuAccount> cpus;  ///< of this group
};

/// What the user's thread may look at while the group lives.
class GroupView {
public:
  struct Row {
    int pid = -1;
    std::string state = "starting";
    double started_ms = 0;   ///< from launch to ready
    double slowdown = 0;     ///< 1.8: its rounds take 1.8 times as long as those of others; 0: nothing was noticed
    std::int64_t round = 0;  ///< the last one it has reported
    std::int64_t step = -1;  ///< the last one it has made, if its function goes on in place; -1: none
  };
  GroupView(int world_size, int places)
      : rows_(static_cast<std::size_t>(places)), ran_(rows_.size()), members_(static_cast<std::size_t>(world_size)) {
    std::iota(members_.begin(), members_.end(), 0);
  }
  /// Places of the workers that train, in rank order.
  void set_members(std::vector<int> members) {
    std::lock_guard lock(mutex_);
    members_ = std::move(members);
  }
  void set(int rank, Row row) {
    std::lock_guard lock(mutex_);
    rows_.at(static_cast<std::size_t>(rank)) = std::move(row);
  }
  void set_state(int rank, const char* state) {
    std::lock_guard lock(mutex_);
    rows_.at(static_cast<std::size_t>(rank)).state = state;
  }
  void set_slowdown(int rank, double ratio) {
    std::lock_guard lock(mutex_);
    rows_.at(static_cast<std::size_t>(rank)).slowdown = ratio;
  }
  void set_round(int rank, std::int64_t round) {
    std::lock_guard lock(mutex_);
    rows_.at(static_cast<std::size_t>(rank)).round = round;
  }
  void set_step(int rank, std::int64_t step) {
    std::lock_guard lock(mutex_);
    rows_.at(static_cast<std::size_t>(rank)).step = step;
  }
  /// In rank order, as everything that is given out here.
  std::vector<Row> rows() const {
    std::lock_guard lock(mutex_);
    return of_members(rows_);
  }
  /// The rank begins an attempt.
  void set_running(int rank) {
    std::lock_guard lock(mutex_);
    auto& row = rows_.at(static_cast<std::size_t>(rank));
    row.state = "running";
    row.slowdown = 0;
    row.round = 0;
    row.step = -1;
    ran_.at(static_cast<std::size_t>(rank)) = row;
  }
  /// The workers of the latest attempt; what became of them since is not told.
  std::vector<Row> ran() const {
    std::lock_guard lock(mutex_);
    return of_members(ran_);
  }
  /// A run begins with the workers that are there.
  std::vector<Row> begin_run() {
    std::lock_guard lock(mutex_);
    ran_ = rows_;
    return of_members(ran_);
  }

private:
  std::vector<Row> of_members(const std::vector<Row>& rows) const {
    std::vector<Row> result;
    for (int place : members_) result.push_back(rows[static_cast<std::size_t>(place)]);
    return result;
  }

  mutable std::mutex mutex_;
  std::vector<Row> rows_;  // by place
  std::vector<Row> ran_;
  std::vector<int> members_;
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

/// To the Trainer, and on to the group: the rank will be taken away.
struct Preempt {
  int rank;
  engine::Duration within;
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
/// The answer to AskToGoOn.
struct GoOn {
  std::uint64_t generation;
  bool granted;
};
/// So many workers from now on; also a command of the user.
struct Resize {
  int world_size;
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
/// The attempt has completed a round or, from the checkpoints, one was committed.
struct Progress {
  std::uint64_t generation;
  bool is_new;  ///< no earlier attempt had come so far
};
/// Ranks were lost, the others wait in the function.
struct AskToGoOn {
  std::uint64_t generation;
  Failure failure;
};
/// They have made a step since they went on in place: what was damaged is mended.
struct WentOn {
  std::uint64_t generation;
};
/// It has changed by itself, or waits for workers.
struct GroupDecided {
  engine::Decision decision;
};
struct GroupOver {
  std::vector<int> stuck_ranks;
};

// Trainer to checkpoints, and back.
struct PrepareAttempt {
  std::uint64_t generation;
  int attempt;
};
/// For the journal.
struct Decided {
  std::uint64_t generation;
  engine::Decision decision;
};
struct AttemptPrepared {
  detail::CheckpointSetup setup;
  std::optional<Failure> failure = {};  ///< its checkpoint cannot be had: the attempt cannot begin
};
/// No more will come.
struct CloseCheckpoints {};
struct CheckpointsClosed {
  std::optional<Failure> failure;  ///< also of a run whose function has ended well
};

// Group to checkpoints, and back.
struct PartSaved {
  std::shared_ptr<detail::SavedPart> part;
};
/// No more parts of that rank will come for the saves after the one number, up to the other.
struct PartsLost {
  std::uint64_t generation;
  int rank;
  std::uint64_t after;
  std::uint64_t up_to;
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
// Far from where the types of a program begin that we are embedded in: numbers are for all of a process.
CAF_BEGIN_TYPE_ID_BLOCK(troupe, caf::first_custom_type_id + 1000)
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
CAF_ADD_ATOM(troupe, troupe::atom, abort, "trp-abort")
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Live))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Held))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Resume))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Pong))
CAF_ADD_ATOM(troupe, troupe::atom, ping, "trp-ping")
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Progress))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Preempted))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::PreemptionNotice))
CAF_ADD_ATOM(troupe, troupe::atom, term, "trp-term")
CAF_ADD_ATOM(troupe, troupe::atom, room, "trp-room")
CAF_ADD_TYPE_ID(troupe, (troupe::wire::Saving))
CAF_ADD_TYPE_ID(troupe, (troupe::wire::AwaitsSave))
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
CAF_ADD_TYPE_ID(troupe, (troupe::local::Progress))
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
CAF_ADD_TYPE_ID(troupe, (troupe::local::Decided))
CAF_ADD_TYPE_ID(troupe, (troupe::local::Preempt))
CAF_ADD_TYPE_ID(troupe, (troupe::local::AskToGoOn))
CAF_ADD_TYPE_ID(troupe, (troupe::local::GoOn))
CAF_ADD_TYPE_ID(troupe, (troupe::local::Resize))
CAF_ADD_TYPE_ID(troupe, (troupe::local::PartsLost))
CAF_ADD_TYPE_ID(troupe, (troupe::local::GroupDecided))
CAF_ADD_TYPE_ID(troupe, (troupe::local::WentOn))
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
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::Progress)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::WentOn)
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
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::Decided)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::Preempt)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::AskToGoOn)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::GoOn)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::Resize)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::PartsLost)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local::GroupDecided)

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
    // Stops the run of that generation, and ends pending collectives.
    compat::on<wire::Halt>::no_reply,
    // Ends pending collectives; a forming that fails by it is told, a function may wait for a new group (Held).
    compat::on<atom::abort>::no_reply,
    // The group knows that the function can go on in place.
    compat::on<wire::Live>::no_reply,
    // Lets a function that is held go on.
    compat::on<wire::Resume>::no_reply,
    // A worker will be taken away: train::preemption_notice().
    compat::on<wire::PreemptionNotice>::no_reply,
    // From its own process: SIGTERM. Tells the group (Preempted) while a function runs, ends the process otherwise.
    compat::on<atom::term>::no_reply,
    // Calls on the object; Replies follow in order.
    compat::on<wire::Calls>::no_reply,
    // Stops everything, takes the backend down, ends.
    compat::on<atom::leave>::no_reply,
    // Answers Pong.
    compat::on<atom::ping>::no_reply,
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
    // The function waits for the answer to a save.
    compat::on<wire::AwaitsSave>::no_reply,
    // The function was left on one rank, which still writes its saves; it ended.
    compat::on<wire::Saving>::no_reply, compat::on<wire::RankDone>::no_reply,
    // The function can go on in place (sent back); it has made a step; it waits for a new group.
    compat::on<wire::Live>::no_reply, compat::on<wire::Progress>::no_reply, compat::on<wire::Held>::no_reply,
    // Its process got SIGTERM.
    compat::on<wire::Preempted>::no_reply,
    // Answers to calls.
    compat::on<wire::Replies>::no_reply,
    // A worker's control thread lives, and its function stands here.
    compat::on<wire::Pong>::no_reply,
    // Runs the function on all ranks, once all are up; one AttemptOver follows.
    compat::on<local::BeginAttempt>::no_reply,
    // Ends the attempt.
    compat::on<local::StopAttempt>::no_reply,
    // The answer to AskToGoOn.
    compat::on<local::GoOn>::no_reply,
    // More or fewer workers.
    compat::on<local::Resize>::no_reply,
    // Another group has given cores back.
    compat::on<atom::room>::no_reply,
    // A rank will be taken away.
    compat::on<local::Preempt>::no_reply,
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
    // Writes the generation to the journal, drops what earlier attempts have not completed; answers AttemptPrepared to
    // the TRAINER.
    compat::on<local::PrepareAttempt>::no_reply,
    // Writes it to the journal.
    compat::on<local::Decided>::no_reply,
    // A rank's part; one SaveOver to the group when the checkpoint is complete.
    compat::on<local::PartSaved>::no_reply,
    // A rank's parts that will not come.
    compat::on<local::PartsLost>::no_reply,
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
    // More or fewer workers.
    compat::on<local::Resize>::no_reply,
    // A rank will be taken away.
    compat::on<local::Preempt>::no_reply,
    // Ends the group and then itself.
    compat::on<local::ShutDown>::no_reply,
    // News of the group.
    compat::on<local::GroupUp>::no_reply, compat::on<local::AttemptOver>::no_reply,
    compat::on<local::Progress>::no_reply, compat::on<local::AskToGoOn>::no_reply, compat::on<local::WentOn>::no_reply,
    compat::on<local::GroupDecided>::no_reply, compat::on<local::GroupOver>::no_reply,
    // News of the checkpoints.
    compat::on<local::AttemptPrepared>::no_reply, compat::on<local::CheckpointsClosed>::no_reply,
    // A deadline may have passed.
    compat::on<atom::tick>::no_reply>;

/// Worker of a process (process placement) or of a thread rank.
/// `descriptors` is its channel to the Node, -1 for a thread rank.
WorkerActor spawn_worker(caf::actor_system& system, WorkerGroupActor group, std::uint64_t token, int descriptors);
StoreActor spawn_store(caf::actor_system& system);
CheckpointsActor spawn_checkpoints(caf::actor_system& system, TrainerActor trainer, WorkerGroupActor group,
                                   std::shared_ptr<detail::CheckpointKeeper> keeper,
                                   std::shared_ptr<detail::RunJournal> journal);
WorkerGroupActor spawn_worker_group(caf::actor_system& system, TrainerActor trainer,
                                    std::shared_ptr<const local::GroupSpec> spec,
                                    std::shared_ptr<local::GroupView> view, std::shared_ptr<local::CallQueue> calls);
TrainerActor spawn_trainer(caf::actor_system& system);

}  // namespace troupe
