// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/stragglers.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace troupe::engine {

std::optional<Stragglers::Slow> Stragglers::seen(int rank, const Standing& standing) {
  auto& r = ranks_.at(static_cast<std::size_t>(rank));
  const auto more_rounds = standing.rounds - r.rounds;
  const auto more_us = standing.compute_us - r.compute_us;
  const bool is_first = !std::exchange(r.is_known, true);
  if (!is_first && more_rounds <= 0) return std::nullopt;
  r.rounds = standing.rounds;
  r.compute_us = standing.compute_us;
  if (is_first) return std::nullopt;
  r.per_round = static_cast<double>(more_us) / static_cast<double>(more_rounds);
  const auto median = median_of_others(rank);
  if (!median || *r.per_round < factor * *median || *r.per_round <= *median + noise_us) {
    r.slow_rounds = 0;
    r.slow_samples = 0;
    r.told = false;
    r.slowdown = 0;
    return std::nullopt;
  }
  r.slow_rounds += more_rounds;
  r.slow_samples += 1;
  if (r.slow_rounds < rounds || r.slow_samples < samples) return std::nullopt;
  r.slowdown = *r.per_round / std::max(*median, 1.0);
  if (std::exchange(r.told, true)) return std::nullopt;
  return Slow{
      rank, fmt::format("rank {} is slow: it computes {:.1f} ms a round, the others {:.1f} ms (median), for {} rounds",
                        rank_of_(rank), *r.per_round / 1000, *median / 1000, r.slow_rounds)};
}

std::optional<double> Stragglers::median_of_others(int rank) const {
  std::vector<double> times;
  std::size_t others = 0;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (static_cast<int>(i) == rank || !ranks_[i].is_known) continue;
    others += 1;
    if (ranks_[i].per_round) times.push_back(*ranks_[i].per_round);
  }
  if (times.empty() || 2 * times.size() < others) return std::nullopt;
  std::sort(times.begin(), times.end());
  const auto middle = times.size() / 2;
  return times.size() % 2 == 1 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
}

}  // namespace troupe::engine
