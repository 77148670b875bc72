// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/rank_watch.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

namespace troupe::engine {
namespace {

/// A short deadline needs pings more often than they are sent for themselves.
LivenessLimits with_interval_for(LivenessLimits limits, Duration progress_deadline) {
  if (progress_deadline > Duration::zero())
    limits.ping_interval = std::clamp(progress_deadline / 4, Duration(1), limits.ping_interval);
  return limits;
}

}  // namespace

RankWatch::RankWatch(WatchLimits limits, RankOfPlace rank_of)
    : replace_stragglers_(limits.replace_stragglers),
      rank_of_(std::move(rank_of)),
      time_(with_interval_for(limits.liveness, limits.progress_deadline).ping_interval),
      liveness_(with_interval_for(limits.liveness, limits.progress_deadline)),
      progress_(limits.liveness.world_size, limits.progress_deadline, rank_of_),
      stragglers_(limits.liveness.world_size, rank_of_) {}

void RankWatch::left(int rank, Time now) {
  liveness_.left(rank);
  progress_.lost(rank, time_.advance(now));
  stragglers_.forget(rank);
}

void RankWatch::began(int rank, Time now) {
  progress_.began(rank, time_.advance(now));
  stragglers_.forget(rank);
}

void RankWatch::stands(int rank, const Standing& standing, Time now) {
  progress_.seen(rank, standing, time_.advance(now));
  if (auto slow = stragglers_.seen(rank, standing)) slow_.push_back(std::move(*slow));
}

RankWatch::Step RankWatch::tick(Time now) {
  const auto lived = time_.advance(now);
  Step step;
  step.lost = liveness_.check(lived);
  if (auto warning = progress_.warning(lived)) step.warnings.push_back(std::move(*warning));
  std::ranges::move(progress_.check(lived), std::back_inserter(step.lost));
  step.slow = std::exchange(slow_, {});
  for (const auto& slow : step.slow) {
    if (!replace_stragglers_) continue;
    if (replaced_.insert(slow.rank).second)
      step.replaced.push_back({slow.rank, fmt::format("replaced as a straggler: {}", slow.text)});
    else
      step.warnings.push_back(
          fmt::format("rank {} was replaced for being slow, and is slow again: not its process is the reason, it stays",
                      rank_of_(slow.rank)));
  }
  step.pings = liveness_.pings(lived);
  return step;
}

std::optional<Time> RankWatch::deadline() const {
  const auto due = liveness_.due();
  return due ? std::optional(time_.when(*due)) : std::nullopt;
}

}  // namespace troupe::engine
