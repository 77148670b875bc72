// SPDX-License-Identifier: Apache-2.0
// The Trainer: runs a function on N supervised workers and brings back results and reports.
#pragma once

#include <chrono>
#include <filesystem>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ostream.h>

#include <troupe/callback.hpp>
#include <troupe/checkpoint.hpp>
#include <troupe/checkpoint_strategy.hpp>
#include <troupe/fn.hpp>
#include <troupe/options.hpp>
#include <troupe/run_iterator.hpp>
#include <troupe/run_results.hpp>
#include <troupe/trainer_status.hpp>
#include <troupe/worker_group.hpp>

namespace caf {
class actor_system;
}

namespace troupe {
namespace detail {
class TrainerImpl;

/// A stateful object to build on every worker.
struct ObjectSpec {
  FunctionId make;
  std::string arguments;
};
}  // namespace detail

/// A checkpoint or none: `.checkpoint = {{"epoch", 2}}`, `= Checkpoint::from_path(folder)`, `=
/// trainer.latest_checkpoint()`.
class StartCheckpoint : public std::optional<Checkpoint> {
public:
  StartCheckpoint() = default;
  StartCheckpoint(std::initializer_list<detail::CheckpointBrace> braces) : optional(Checkpoint(braces)) {}
  StartCheckpoint(Checkpoint checkpoint) : optional(std::move(checkpoint)) {}  // NOLINT(google-explicit-constructor)
  StartCheckpoint(std::optional<Checkpoint> checkpoint)                        // NOLINT(google-explicit-constructor)
      : optional(std::move(checkpoint)) {}
  StartCheckpoint(const Json& object) : optional(Checkpoint(object)) {}  // NOLINT(google-explicit-constructor)
};

/// What a run gets, in Ray's argument order.
struct RunOptions {
  /// Handed to the function on every worker. An object; omitted: `{}`.
  Json config = {};
  std::vector<std::shared_ptr<TrainingCallback>> callbacks = {};
  /// What load_checkpoint() gives before the function has saved one.
  StartCheckpoint checkpoint = {};
  CheckpointStrategy checkpoint_strategy = {};

  /// Go on with the latest run in the log directory, in its folder: load_checkpoint() gives its latest checkpoint, ids
  /// and counters go on. Without an earlier run this is an ordinary one.
  bool resume = false;
  /// Checkpoints are also brought there, behind the training: a folder, or
  /// "s3://bucket/prefix?endpoint=http://host:9000&region=...". A resumed run without local ones fetches the newest.
  std::string storage_path = {};
};

/// Not thread safe, except that shutdown() may be called while another thread is in run(), and status() always.
class Trainer {
public:
  /// Refuses bad options with the list of valid values, and makes the log directory. Starts nothing.
  explicit Trainer(const TrainerOptions& options = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// A trainer whose next run goes on with the run in that folder, which may have died with its program. Of the options
  /// that are not given, number of workers and backend are those of that run; `logdir` is its parent.
  static Trainer restore(const std::filesystem::path& run_dir, TrainerOptions options = {});

  /// Starts the workers and sets up the backend; `initialization_hook` runs on each worker before anything else.
  /// Throws start_failed when workers cannot be started, user_code when the hook throws.
  void start(Fn initialization_hook = {});

  /// Starts the workers, each with an object of type Cls made from `args`.
  template <class Cls, class... Args>
  void start(Args&&... args) {
    using Make = detail::MakeObject<Cls, detail::Sent<Args>...>;
    static_cast<void>(&detail::Registered<Make, detail::EntryKind::make>::done);
    start_object({detail::identify(reinterpret_cast<detail::AnyEntry>(&Make::call)),
                  detail::encode_all(static_cast<const detail::Sent<Args>&>(args)...)});
  }

  /// start<Cls>(args...) with the handle to its workers.
  template <class Cls, class... Args>
  WorkerGroup to_worker_group(Args&&... args) {
    start<Cls>(std::forward<Args>(args)...);
    return workers();
  }

  /// Runs the function on all workers: results in rank order (null for void). Starts the workers if need be. A function
  /// may return a Checkpoint: `run(...).checkpoint(rank)`.
  /// Throws TrainingFailed, Interrupted, or Error (user_code with the rank, callback_failed, unequal_reports ...).
  RunResults run(Fn function, RunOptions options = {});

  /// The same, one round of reports at a time; callbacks are refused.
  RunIterator run_iterator(Fn function, RunOptions options = {});
  RunIterator run_generator(Fn function, RunOptions options = {}) { return run_iterator(function, std::move(options)); }

  /// The workers, for calls on them; throws invalid_state before start().
  WorkerGroup workers();
  /// Calls on all workers: see WorkerGroup::execute.
  template <class F, class... Args>
  auto execute(F function, const Args&... args) {
    return workers().execute(function, args...);
  }
  /// Calls on rank 0.
  template <class F, class... Args>
  auto execute_single(F function, Args&&... args) {
    return workers().execute_single(function, std::forward<Args>(args)...);
  }

  /// Ends the workers; a running function is stopped, and killed after the shutdown deadline. Throws deadline in
  /// thread placement when a rank does not stop. start() may follow.
  void shutdown();

  bool started() const;
  /// Of the moment, where num_workers is a range.
  int num_workers() const;
  /// More or fewer workers, within the range that num_workers gave; may be called from any thread while a run is
  /// active. A function with a train::Recoverable goes on in place at a step's end, others are run again from their
  /// checkpoint.
  void resize(int num_workers);
  /// Takes a worker away in good order: see train::preemption_notice(). `within` defaults to preemption_grace. It costs
  /// no retry. The same happens to a worker process that gets SIGTERM. From any thread.
  void preempt(int rank, std::optional<std::chrono::milliseconds> within = {});
  /// Process ids of the workers in rank order (the own one in thread placement); empty while not started.
  std::vector<int> worker_pids() const;
  const std::filesystem::path& logdir() const;
  /// `<logdir>/run_001` and so on; empty before the first run.
  std::filesystem::path latest_run_dir() const;
  /// Checkpoints of the latest run (or of the one that is active): its newest one, else the one it was given.
  std::optional<Checkpoint> latest_checkpoint() const;
  std::optional<Checkpoint> get_last_checkpoint() const { return latest_checkpoint(); }
  /// `<run>/checkpoints`; empty before the first run.
  std::filesystem::path latest_checkpoint_dir() const;
  /// Folder of the newest one; empty when there is none on disk.
  std::filesystem::path latest_checkpoint_path() const;
  /// Folder of the best one by the run's CheckpointStrategy (default: the newest); empty when there is none on disk.
  std::filesystem::path best_checkpoint_path() const;
  /// Those that are kept, best first, each with the metrics that were reported with it.
  std::vector<std::pair<Checkpoint, Json>> best_checkpoints() const;
  /// Saves of the latest run that failed, as text; the run went on.
  std::vector<std::string> checkpoint_errors() const;
  /// What it does at the moment: state, attempt, generation, workers, restarts. From any thread, at any time.
  TrainerStatus status() const;
  /// A table of resources and workers.
  std::string to_string() const;

private:
  friend Trainer make_trainer(caf::actor_system& system, const TrainerOptions& options);
  explicit Trainer(std::unique_ptr<detail::TrainerImpl> impl);
  void start_object(const detail::ObjectSpec& object);

  std::shared_ptr<detail::TrainerImpl> impl_;  // shared with a handle that is ending the workers
};

std::ostream& operator<<(std::ostream& out, const Trainer& trainer);

}  // namespace troupe

template <>
struct fmt::formatter<troupe::Trainer> : fmt::ostream_formatter {};
