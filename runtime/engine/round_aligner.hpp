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

namespace troupe::engine {

class RoundAligner {
public:
  struct Limits {
    int world_size = 1;
    /// A rank that has this much waiting for other ranks cannot report any more (its credit is used up).
    std::size_t window_reports = 1024;
    std::size_t window_bytes = std::size_t{1} << 20;
    Duration report_deadline = std::chrono::seconds(60);
  };

  explicit RoundAligner(Limits limits) : limits_(limits), ranks_(static_cast<std::size_t>(limits.world_size)) {}

  /// The next report of a rank.
  void add(int rank, std::string report, Time now);
  /// The rank returned; it will report no more.
  void finish(int rank);

  /// The next complete round, in rank order.
  std::optional<std::vector<std::string>> take();

  /// The failure of ranks that reported unequally often: one has returned with fewer reports than another has sent, or
  /// one has been out of credit for the report deadline because others reported fewer.
  std::optional<Failure> check(Time now) const;
  /// When check() should be asked again even if nothing happens.
  std::optional<Time> deadline() const;

private:
  struct Rank {
    std::deque<std::string> waiting;
    std::size_t waiting_bytes = 0;
    std::int64_t reported = 0;
    bool finished = false;
  };
  bool out_of_credit(const Rank& rank) const;
  Failure unequal(const std::string& how) const;

  Limits limits_;
  std::vector<Rank> ranks_;
  std::size_t ranks_waiting_ = 0;  // ranks with a report that waits
  Time last_add_{};
  std::optional<Time> stalled_since_;
};

}  // namespace troupe::engine
