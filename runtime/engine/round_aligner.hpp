// SPDX-License-Identifier: Apache-2.0
// Lines the reports of all ranks up by round: a round is complete when every rank has reported it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/failure.hpp"
#include "runtime/engine/liveness.hpp"

namespace troupe::engine {

/// One report of every rank that took part.
struct AlignedRound {
  std::vector<int> ranks;
  std::vector<std::string> reports;
};

class RoundAligner {
public:
  struct Limits {
    int world_size = 1;  ///< numbers of ranks are below; all take part at first
    /// A rank that has this much waiting for other ranks cannot report any more (its credit is used up).
    std::size_t window_reports = 1024;
    std::size_t window_bytes = std::size_t{1} << 20;
    Duration report_deadline = std::chrono::seconds(60);  ///< of lived time
  };

  explicit RoundAligner(Limits limits) : limits_(limits), ranks_(static_cast<std::size_t>(limits.world_size)) {}

  /// The next report of a rank.
  void add(int rank, std::string report, Time now);
  /// How many reports a rank has made.
  std::int64_t reported(int rank) const { return ranks_.at(static_cast<std::size_t>(rank)).reported; }
  /// The rank returned; it will report no more.
  void finish(int rank);
  /// From now on these ranks take part; those of them that are new go on where the furthest of the others is. What
  /// ranks have reported that left is still delivered. Who waits for reports of others waits since now.
  void regroup(const std::vector<int>& members, const std::vector<int>& newcomers);

  /// The next complete round, in rank order.
  std::optional<AlignedRound> take();
  /// The consumer is done with so many rounds that were taken. Until it is done with all, ranks may be silent because
  /// it has their credit, and nobody is blamed.
  void consumed(std::size_t rounds);

  /// The failure of ranks that reported unequally often: one has returned with fewer reports than another has sent, or
  /// one has been out of credit for the report deadline because others reported fewer.
  std::optional<Failure> check(Time now);
  /// When check() should be asked again even if nothing happens.
  std::optional<Time> deadline() const;

private:
  struct Rank {
    struct Report {
      std::int64_t round;
      std::string bytes;
    };
    std::deque<Report> waiting;
    std::size_t waiting_bytes = 0;
    std::int64_t reported = 0;  // rounds, with those before it came
    bool finished = false;
    bool member = true;
  };
  bool has_round(const Rank& rank, std::int64_t round) const {
    return !rank.waiting.empty() && rank.waiting.front().round == round;
  }
  bool is_complete() const;
  bool out_of_credit(const Rank& rank) const;
  void begin_stall();
  Failure unequal(const std::string& how) const;

  Limits limits_;
  std::vector<Rank> ranks_;
  std::size_t ranks_waiting_ = 0;  // ranks with a report that waits
  std::int64_t taken_ = 0;         // rounds
  std::size_t unconsumed_ = 0;     // of them
  bool regrouped_ = false;         // not every rank takes part in every round
  LivedTime time_{std::chrono::seconds(1)};
  std::optional<Duration> stalled_since_;
};

}  // namespace troupe::engine
