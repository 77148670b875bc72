// SPDX-License-Identifier: Apache-2.0
// Which workers count as lost though their processes live: stopped for too long, or silent to our pings.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/failure.hpp"
#include "runtime/engine/standing.hpp"

namespace troupe::engine {

/// Time as the driver lived it. A driver that was itself stopped or starved heard nobody, and that is nobody's fault: a
/// gap between two looks at the clock counts as one step, however long it was.
class LivedTime {
public:
  explicit LivedTime(Duration step) : step_(step) {}
  Duration advance(Time now);
  Duration lived() const { return lived_; }
  /// When advance() should be called next, for something due at that lived time.
  Time when(Duration due) const;

private:
  Duration step_;
  Duration lived_{0};
  std::optional<Time> last_;
};

struct LivenessLimits {
  int world_size = 1;
  Duration stopped_grace = std::chrono::seconds(2);
  Duration ping_interval = std::chrono::seconds(1);
  Duration ping_deadline = std::chrono::seconds(10);  ///< 0: silence is no reason
};

/// All times are lived ones.
class Liveness {
public:
  explicit Liveness(LivenessLimits limits) : limits_(limits), ranks_(static_cast<std::size_t>(limits.world_size)) {}

  /// The worker can be pinged.
  void joined(int rank, Duration now);
  void left(int rank) { at(rank) = Rank{}; }
  /// `how`: "stopped by SIGSTOP".
  void stopped(int rank, std::string how, Duration now);
  void continued(int rank, Duration now);
  void answered(int rank, Duration now) { at(rank).heard = now; }

  std::vector<GivenUp> check(Duration now);
  /// Whom to ping now.
  std::vector<int> pings(Duration now);
  /// When to call check() and pings() again.
  std::optional<Duration> due() const;

private:
  struct Rank {
    bool is_there = false;
    Duration heard{0};
    std::optional<Duration> stopped_since;
    std::string how_stopped;
    bool given_up = false;
  };
  Rank& at(int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }

  LivenessLimits limits_;
  std::vector<Rank> ranks_;
  Duration next_ping_{0};
};

}  // namespace troupe::engine
