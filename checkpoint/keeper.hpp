// SPDX-License-Identifier: Apache-2.0
// The checkpoints of one run, in the driver: puts the ranks' parts together, commits, decides what stays, and knows
// where to go on after a failure. It writes and waits for the disk, so it must not be called from an actor's thread
// that others wait for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <troupe/checkpoint.hpp>
#include <troupe/checkpoint_strategy.hpp>

#include "checkpoint/retention.hpp"
#include "checkpoint/saved_part.hpp"
#include "checkpoint/source.hpp"

namespace troupe::storage {
class CheckpointMirror;
}

namespace troupe::detail {

struct KeeperOptions {
  std::filesystem::path directory;  ///< the run's
  CheckpointStrategy strategy;
  std::optional<Checkpoint> start;  ///< what load_checkpoint() gives before the first save
  bool resume = false;              ///< go on with the checkpoints that are in the directory
  std::string storage_path = {};    ///< also bring them there; see open_storage()
  /// Asked right before a commit: empty, or why the run is no longer this program's. Nothing is committed then, and the
  /// run ends.
  std::function<std::string()> why_lost = [] { return std::string(); };
  /// Told of every commit: generation, number, reports before it.
  std::function<void(std::uint64_t, std::uint64_t, std::int64_t)> on_commit = [](auto, auto, auto) {};
};

class CheckpointKeeper {
public:
  /// What became of a save. `fatal` ends the run; the checkpoint is safe all the same.
  struct Over {
    SaveResult result;
    std::string fatal;
  };

  /// Throws invalid_option for a strategy, io for a directory that cannot be used.
  explicit CheckpointKeeper(KeeperOptions options);
  ~CheckpointKeeper();

  /// Drops what was not completed, and tells the ranks of the attempt where to go on. Parts of earlier attempts are
  /// refused from now on. The checkpoint it names was read and verified; one that is damaged is passed over.
  CheckpointSetup begin_attempt(std::uint64_t generation);
  /// One rank's part. Gives what was decided by it: nothing while other ranks' parts are missing.
  std::vector<Over> add(SavedPart part);
  /// Numbers of saves.
  struct Saves {
    std::uint64_t after = 0;
    std::uint64_t up_to = 0;
  };
  /// The rank was lost, or makes these saves too late: no part of it will come that has not come. Those that need it
  /// have failed.
  std::vector<Over> give_up_parts(std::uint64_t generation, std::int32_t rank, Saves saves);
  /// The run is over: nothing half done stays.
  void close();

  // ---- for the driver's own threads, at any time
  std::optional<Checkpoint> latest() const;
  /// Folders of the latest and the best one; empty when there is none on disk.
  std::filesystem::path latest_path() const;
  std::filesystem::path best_path() const;
  std::filesystem::path folder() const;  ///< `<run>/checkpoints`
  /// Those that stay, best first, with what was reported with them.
  std::vector<std::pair<Checkpoint, Json>> best() const;
  std::uint64_t committed() const;
  /// Saves that failed, and what went wrong with checkpoints that are safe.
  std::vector<std::string> errors() const;
  /// The latest one goes if it is not among the best: another run has a newer one.
  void drop_spare_latest();

private:
  /// A committed checkpoint that is still there.
  struct Entry {
    Json metrics;
    std::filesystem::path folder;  ///< empty: in memory only
    CheckpointSource source;
    std::vector<MemoryShard> memory;  ///< what `source` names
  };
  /// Parts of one save, by rank.
  using Parts = std::map<std::int32_t, SavedPart>;

  bool on_disk() const { return options_.strategy.num_to_keep != 0; }
  /// Nothing is removed, either, once another program drives the run.
  bool is_ours() const { return options_.why_lost().empty(); }
  std::filesystem::path spare_folder() const { return options_.directory / "latest"; }
  void adopt_existing();
  void fetch_if_empty();
  void pass_over_damaged();
  CheckpointSource start_source();
  void forget_parts();
  void try_to_sweep();
  std::vector<Over> finish_in_order();
  std::optional<std::int32_t> missing_for_good(std::uint64_t number) const;
  std::string next_results();
  Over finish(std::uint64_t number, const Parts& parts);
  Entry commit_to_disk(std::uint64_t id, const Parts& parts);
  Entry commit_to_memory(const Parts& parts);
  /// Takes its place among the others; gives why it has none that would end the run.
  std::string rank_and_evict(std::uint64_t id);
  void try_to_move(const std::filesystem::path& parent, std::uint64_t id);
  double score_of(const Entry& entry) const;
  void replace_latest(std::uint64_t id);
  void remove(std::uint64_t id);
  void release_start();
  Checkpoint open(const Entry& entry) const;
  void note_error(const std::string& text);
  void mirror();

  const KeeperOptions options_;
  mutable std::mutex mutex_;
  Retention retention_;
  std::map<std::uint64_t, Entry> entries_;  // by id: those that stay, and the latest
  std::set<std::uint64_t> unranked_;        // of them, those whose score cannot be read
  std::set<std::uint64_t> damaged_;         // passed over
  std::optional<std::uint64_t> latest_;
  std::optional<std::uint64_t> start_;  // where the attempt began: stays until its end, a rank may come to it late
  bool start_goes_ = false;             // it would be gone but for that
  std::optional<MemoryShard> start_memory_;
  std::uint64_t next_id_ = 1;
  std::uint64_t committed_ = 0;
  std::vector<std::string> errors_;

  // The current attempt.
  std::uint64_t generation_ = 0;
  int attempts_ = 0;
  std::filesystem::path results_;  // its ranks' large results
  std::uint64_t first_id_ = 1;
  std::uint64_t next_number_ = 1;
  std::map<std::uint64_t, Parts> pending_;               // by number
  std::set<std::uint64_t> mixed_;                        // numbers with parts of groups of two sizes
  std::map<std::int32_t, std::vector<Saves>> given_up_;  // by rank

  mutable std::mutex storage_mutex_;
  std::vector<std::string> storage_errors_;
  std::unique_ptr<storage::CheckpointMirror> mirror_;  // last: its thread uses the others
};

}  // namespace troupe::detail
