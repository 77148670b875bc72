// SPDX-License-Identifier: Apache-2.0
// Finds ranks whose function makes no progress: a warning that shows where all of them stand, then whom the others wait
// for. All times are lived ones (LivedTime).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/failure.hpp"
#include "runtime/engine/standing.hpp"

namespace troupe::engine {

class ProgressWatch {
public:
  /// A deadline of 0: nothing is watched.
  ProgressWatch(int world_size, Duration deadline, RankOfPlace rank_of)
      : deadline_(deadline), rank_of_(std::move(rank_of)), ranks_(static_cast<std::size_t>(world_size)) {}

  /// The rank's function begins.
  void began(int rank, Duration now);
  /// It ended.
  void ended(int rank) { rest(rank, "has ended"); }
  /// It waits for a new group: until it begins again it has nothing to do.
  void held(int rank) { rest(rank, "waits for a new group"); }
  /// The rank is gone. The others, who wait for its replacement, get the whole deadline again.
  void lost(int rank, Duration now);
  void seen(int rank, const Standing& standing, Duration now);

  /// Once for a stall, at half of the deadline.
  std::optional<std::string> warning(Duration now);
  /// Whom the others wait for, once the deadline has passed.
  std::vector<GivenUp> check(Duration now);
  std::string describe(Duration now) const;

private:
  struct Rank {
    bool runs = false;
    const char* rests = nullptr;  // how, if it has begun and does not run
    bool given_up = false;
    Standing standing;
    Duration changed{0};
  };
  Rank& at(int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  void rest(int rank, const char* how) {
    auto& r = at(rank);
    if (std::exchange(r.runs, false)) r.rests = how;
  }
  const Rank& at(int rank) const { return ranks_.at(static_cast<std::size_t>(rank)); }
  std::vector<int> stalled(Duration limit, Duration now) const;
  std::vector<int> blockers(const std::vector<int>& stalled) const;
  bool all_run_out(const std::vector<int>& stalled) const;

  Duration deadline_;
  RankOfPlace rank_of_;
  std::vector<Rank> ranks_;
  bool warned_ = false;
};

}  // namespace troupe::engine
