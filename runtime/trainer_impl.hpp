// SPDX-License-Identifier: Apache-2.0
// What stands behind a Trainer.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <troupe/trainer.hpp>

#include "actors/protocols.hpp"
#include "actors/user_thread.hpp"
#include "runtime/base/settings.hpp"
#include "runtime/local_workers.hpp"
#include "runtime/run_file.hpp"

namespace troupe::detail {

class ActorCallTarget;

class TrainerImpl : public std::enable_shared_from_this<TrainerImpl> {
public:
  /// `system` is null for the private one.
  TrainerImpl(const TrainerOptions& options, caf::actor_system* system);
  ~TrainerImpl();
  /// One whose next run goes on in that folder.
  static std::unique_ptr<TrainerImpl> restore(const std::filesystem::path& run_dir, TrainerOptions options);

  void start(const Fn& hook, const ObjectSpec& object);
  RunResults run(const Fn& function, RunOptions options);
  std::shared_ptr<Run> run_iterator(const Fn& function, RunOptions options);
  WorkerGroup workers();
  void shutdown(std::chrono::milliseconds patience);
  void shutdown() { shutdown(settings_.shutdown_deadline); }

  bool started() const;
  int num_workers() const;
  void resize(int num_workers);
  std::vector<int> worker_pids() const;
  const std::filesystem::path& logdir() const { return logdir_; }
  std::filesystem::path latest_run_dir() const;
  /// Of the latest run; null before the first.
  std::shared_ptr<CheckpointKeeper> keeper() const;
  void preempt(int rank, std::optional<std::chrono::milliseconds> within);
  std::string to_string() const;
  TrainerStatus status() const;

private:
  /// What start() makes and shutdown() takes away.
  struct Group {
    TrainerActor trainer;
    std::shared_ptr<local::GroupView> view;
    std::shared_ptr<ActorCallTarget> calls;
    std::shared_ptr<LocalWorkers> local;
    StartTimings timings;
  };

  /// False in a fork of the process that has used it.
  bool is_own_process() const;
  void require_own_process() const;
  std::shared_ptr<Group> group() const;
  std::shared_ptr<Group> require_group();
  std::shared_ptr<Group> start_unless_started();
  /// For handles, which outlive the trainer.
  std::function<void(std::chrono::milliseconds)> shut_down_later();
  void make_group(const Fn& hook, const ObjectSpec& object, Group& group);
  void start_actors(const Fn& hook, const ObjectSpec& object, Group& group);
  void end(Group& group) const;
  void check_gpus() const;
  int most_workers() const;
  static std::vector<local::GroupView::Row> worker_rows(const std::shared_ptr<Group>& current);

  /// Makes the run and its folder; nothing runs yet.
  std::shared_ptr<Run> prepare_run(const Fn& function, RunOptions& options, const Group& group);
  std::shared_ptr<void> reserve_run(const Group& group);
  /// The folder of the next run, and whether there is a run in it to go on with.
  std::pair<std::filesystem::path, bool> next_run_dir(bool resume, const std::string& storage_path);
  /// Sends it to the workers.
  static void begin(const std::shared_ptr<Run>& run, const Group& group);

  const Settings settings_;
  caf::actor_system* const host_system_;
  const std::filesystem::path logdir_;  // behind what may be refused, which leaves no folder
  std::shared_ptr<caf::actor_system> system_;
  std::atomic<pid_t> used_in_{-1};  // the process that has the threads behind it

  mutable std::mutex mutex_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<Group> starting_;  // what start() is at; shutdown() takes it away
  bool preparing_ = false;           // a run, which may take long
  std::weak_ptr<Run> active_run_;
  std::shared_ptr<RunView> run_view_;  // of the latest run
  std::filesystem::path latest_run_dir_;
  std::shared_ptr<CheckpointKeeper> keeper_;
  std::filesystem::path restored_;            // the next run goes on there
  std::shared_ptr<UserThread> local_thread_;  // of an iterator in local mode
};

}  // namespace troupe::detail
