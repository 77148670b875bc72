// SPDX-License-Identifier: Apache-2.0
// Brings a run's checkpoints into storage, and removes there what is not kept any more, behind everybody's back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "checkpoint/storage/storage.hpp"

namespace troupe::storage {

class CheckpointMirror {
public:
  /// Names of checkpoints ("checkpoint_000003") and the committed folders they are copied from.
  /// Without a folder: what is stored of it stays.
  using Wanted = std::map<std::string, std::filesystem::path>;
  /// How long the end of a run waits for a store that does not answer.
  static constexpr std::chrono::milliseconds closing_limit = std::chrono::seconds(30);

  /// Keys begin with `prefix`. `on_error` is called on the mirror's thread with a text for people.
  CheckpointMirror(std::unique_ptr<Storage> storage, std::string prefix,
                   std::function<void(const std::string&)> on_error);
  ~CheckpointMirror();
  CheckpointMirror(const CheckpointMirror&) = delete;
  CheckpointMirror& operator=(const CheckpointMirror&) = delete;

  /// Names of what an earlier program of this run may have brought there; everything else in storage is another run's
  /// and is left alone. Before the first want().
  void adopt(std::set<std::string> names);
  /// What should be there from now on; never waits. While a copy is under way, only the last wish counts.
  void want(Wanted wanted);
  /// Waits until storage holds what is wanted, or a last try has failed.
  void flush();
  /// The same, for the last time: a store that does not answer for `limit` is waited for no longer. One that answers
  /// is, however slow it is.
  void finish(std::chrono::milliseconds limit = closing_limit);

  struct Fetched {
    std::filesystem::path folder;
    std::string newest;  ///< the name of the newest that is stored, whole or not
  };
  /// Copies the newest whole checkpoint that `prefix` has into `parent`, and verifies it; those that are damaged are
  /// told and passed over. Nothing if none is stored; throws io if there are some and none can be had.
  std::optional<Fetched> fetch_latest(const std::filesystem::path& parent);

private:
  void run();
  bool try_to_reconcile(const Wanted& wanted);
  void reconcile(const Wanted& wanted);
  bool bring(const Wanted& wanted);
  void fetch(const std::string& name, const std::filesystem::path& folder);
  bool try_to_remove(const std::string& name, void (*remove)(Storage&, const std::string&));
  std::string key_of(const std::string& name) const { return prefix_ + "/" + name; }

  const std::unique_ptr<Storage> storage_;
  const std::string prefix_;
  const std::function<void(const std::string&)> on_error_;
  // The mirror's thread only, after the first want().
  std::set<std::string> adopted_;  // may be there
  std::set<std::string> stored_;   // what this run has brought there

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Wanted> next_;
  bool is_busy_ = false;
  bool is_last_ = false;  // a store that is away now is not tried again
  bool is_ending_ = false;
  std::thread thread_;
};

/// "run_003": the newest run that has a checkpoint in storage below `prefix`, or nothing.
std::optional<std::string> latest_stored_run(Storage& storage, const std::string& prefix);

}  // namespace troupe::storage
