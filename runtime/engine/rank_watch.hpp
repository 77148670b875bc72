// SPDX-License-Identifier: Apache-2.0
// Watches the workers of a group from their start to their end: who is stopped, silent, stuck or slow. Pure; the
// WorkerGroup actor sends the pings, and gives up whom this names.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/engine/liveness.hpp"
#include "runtime/engine/progress_watch.hpp"
#include "runtime/engine/stragglers.hpp"

namespace troupe::engine {

struct WatchLimits {
  LivenessLimits liveness;
  Duration progress_deadline{0};  ///< 0: a function may take as long as it likes
  bool replace_stragglers = false;
};

class RankWatch {
public:
  /// What is to be done now.
  struct Step {
    std::vector<int> pings;
    std::vector<GivenUp> lost;
    std::vector<GivenUp> replaced;  ///< they do their part, but slowly: that is no failure
    std::vector<std::string> warnings;
    std::vector<Stragglers::Slow> slow;
  };

  explicit RankWatch(WatchLimits limits, RankOfPlace rank_of = std::identity());

  // Its worker.
  void joined(int rank, Time now) { liveness_.joined(rank, time_.advance(now)); }
  void left(int rank, Time now);
  void stopped(int rank, std::string how, Time now) { liveness_.stopped(rank, std::move(how), time_.advance(now)); }
  void continued(int rank, Time now) { liveness_.continued(rank, time_.advance(now)); }
  void answered(int rank, Time now) { liveness_.answered(rank, time_.advance(now)); }

  // Its function.
  /// A run begins: each rank may be replaced once for being slow.
  void run_began() { replaced_.clear(); }
  void began(int rank, Time now);
  void ended(int rank) { progress_.ended(rank); }
  void held(int rank) { progress_.held(rank); }
  void stands(int rank, const Standing& standing, Time now);

  /// How much longer than the others it takes for a round; 0: nothing was noticed.
  double slowdown(int rank) const { return stragglers_.slowdown(rank); }

  /// At deadline(), and after anything that may have moved it.
  Step tick(Time now);
  std::optional<Time> deadline() const;

private:
  const bool replace_stragglers_;
  const RankOfPlace rank_of_;
  LivedTime time_;
  Liveness liveness_;
  ProgressWatch progress_;
  Stragglers stragglers_;
  std::vector<Stragglers::Slow> slow_;
  std::set<int> replaced_;
};

}  // namespace troupe::engine
