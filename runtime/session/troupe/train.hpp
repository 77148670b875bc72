// SPDX-License-Identifier: Apache-2.0
// What a train function sees of its rank. Every function here works on the thread that runs the train function, on
// threads bound with a ContextGuard and, in process placement, on every thread of the worker.
#pragma once

#include <chrono>
#include <memory>

#include <concepts>
#include <filesystem>
#include <optional>

#include <troupe/checkpoint.hpp>
#include <troupe/json.hpp>

namespace troupe {
namespace train {
struct SaveOptions;
}
namespace detail {
class Session;
void save_folder(const std::filesystem::path& folder, train::SaveOptions options);
}  // namespace detail

namespace train {

/// Sends one round of metrics (a JSON object; null counts as no metrics) to the driver. All ranks report equally often.
/// Returns at once while credit is left, waits for a slow consumer otherwise. Throws Stopped when the run is being
/// stopped, invalid_argument for anything but an object, too_large above 16 MiB.
void report(const Json& metrics);

struct SaveOptions {
  /// False: all ranks hold the same state, and rank 0's is kept. True: the parts of all ranks are kept.
  bool sharded = false;
  /// The state is a folder of files. They are copied on the disk before the call returns, which takes its time.
  bool files = false;
};

/// Saves the state of this rank: `train::save_checkpoint({{"epoch", epoch}, {"model", state}})`. All ranks call it
/// equally often. Returns when the state is copied; it is written behind the function's back, and waits while two are
/// under way. A save that fails is told in the log and in run.json, and the one before it stays. `_timestamp` and
/// `_current_checkpoint_id` are added.
void save_checkpoint(const Checkpoint& state, SaveOptions options = {});
/// With `files`: a copy of the folder. Only rank 0's is looked at.
template <class Path>
  requires std::convertible_to<Path, std::filesystem::path>
void save_checkpoint(const Path& folder, SaveOptions options) {
  detail::save_folder(folder, options);
}
/// Reports, and saves with the metrics: a CheckpointStrategy may rank by them.
void report(const Json& metrics, const Checkpoint& checkpoint, SaveOptions options = {});
/// The latest checkpoint of this run, else the one that run() was given, else nothing. Waits for those under way.
std::optional<Checkpoint> load_checkpoint();
/// Waits until all checkpoints of this rank are safe (or have failed).
void flush_checkpoints();
inline void flush() { flush_checkpoints(); }

/// Rank among all workers, among those of this host, and the number of this host.
int world_rank();
int local_rank();
int node_rank();
/// Number of workers, and of those on this host.
int world_size();
int local_world_size();
/// True inside a worker (or in local mode's function), false in the driver.
bool in_worker();
/// True once the run is being stopped: return soon.
bool should_stop();
/// Waits until the run is being stopped, without end or for this long at most; true when it is.
void wait_for_stop();
bool wait_for_stop(std::chrono::milliseconds timeout);

/// A worker will be taken away.
struct PreemptionNotice {
  int rank = 0;                                      ///< which
  std::chrono::steady_clock::time_point deadline{};  ///< when, at the latest
  std::chrono::milliseconds time_left() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  }
};
/// Set on all ranks once a worker is to be taken away: its process got SIGTERM, or Trainer::preempt() was called. Save
/// a checkpoint before the deadline; then go on, or return. The worker is replaced when its function returns, or at the
/// deadline, and the function runs again from that checkpoint (or goes on in place, if it can) at the cost of no retry.
/// A function that has looked at the notice and returns before the deadline is run again too.
std::optional<PreemptionNotice> preemption_notice();

/// The rank this thread works for, as a value that can be handed to other threads.
class Context {
public:
  Context() = default;
  explicit Context(std::shared_ptr<detail::Session> session) : session_(std::move(session)) {}
  explicit operator bool() const { return session_ != nullptr; }
  const std::shared_ptr<detail::Session>& session() const { return session_; }

private:
  std::shared_ptr<detail::Session> session_;
};

/// The calling thread's rank; throws not_in_worker where there is none.
Context context();

/// Binds a rank to the calling thread for the guard's life.
class ContextGuard {
public:
  explicit ContextGuard(const Context& context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

private:
  std::shared_ptr<detail::Session> previous_;
};

/// The names of Ray AIR's session module.
namespace session {
using train::report;
inline std::optional<Checkpoint> get_checkpoint() { return load_checkpoint(); }
inline int get_world_size() { return world_size(); }
inline int get_world_rank() { return world_rank(); }
inline int get_local_rank() { return local_rank(); }
inline int get_node_rank() { return node_rank(); }
inline int get_local_world_size() { return local_world_size(); }
}  // namespace session

}  // namespace train
}  // namespace troupe
