// SPDX-License-Identifier: Apache-2.0
// Finds ranks that slow the others down. In step with each other all ranks take equally long for a round, so what is
// compared is the time that a rank computes in it, without its waiting.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/standing.hpp"

namespace troupe::engine {

class Stragglers {
public:
  /// So much longer than the median of the others ...
  static constexpr double factor = 1.5;
  /// ... in so many rounds in a row ...
  static constexpr std::int64_t rounds = 5;
  /// ... seen so often: one look may fall into the start of a rank that has just joined ...
  static constexpr int samples = 2;
  /// ... and by so much a round: less is noise.
  static constexpr std::int64_t noise_us = 1000;

  struct Slow {
    int rank;
    std::string text;  ///< "rank 1 is slow: 180 ms a round, 1.8 times ..."
  };

  Stragglers(int world_size, RankOfPlace rank_of)
      : rank_of_(std::move(rank_of)), ranks_(static_cast<std::size_t>(world_size)) {}
  /// The rank's function begins, or the rank is gone.
  void forget(int rank) { ranks_.at(static_cast<std::size_t>(rank)) = Rank{}; }
  /// Set when the rank has become a straggler; not again before it was as fast as the others.
  std::optional<Slow> seen(int rank, const Standing& standing);
  /// 1.8: its rounds take 1.8 times as long as those of the others; 0: it is no straggler.
  double slowdown(int rank) const { return ranks_.at(static_cast<std::size_t>(rank)).slowdown; }

private:
  struct Rank {
    bool is_known = false;
    std::int64_t rounds = 0;
    std::int64_t compute_us = 0;
    std::optional<double> per_round;  // in the latest interval
    std::int64_t slow_rounds = 0;
    int slow_samples = 0;
    bool told = false;
    double slowdown = 0;
  };
  std::optional<double> median_of_others(int rank) const;

  RankOfPlace rank_of_;
  std::vector<Rank> ranks_;
};

}  // namespace troupe::engine
