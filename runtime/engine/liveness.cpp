// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/liveness.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace troupe::engine {

Duration LivedTime::advance(Time now) {
  if (!last_) last_ = now;
  const auto passed = std::chrono::floor<Duration>(now - *last_);
  if (passed <= Duration::zero()) return lived_;
  lived_ += std::min(passed, step_);
  // What is less than a unit is not lost.
  last_ = passed > step_ ? now : *last_ + passed;
  return lived_;
}

Time LivedTime::when(Duration due) const {
  return last_.value_or(Time{}) + std::clamp(due - lived_, Duration::zero(), step_);
}

void Liveness::joined(int rank, Duration now) {
  at(rank).is_there = true;
  at(rank).heard = now;
}

void Liveness::stopped(int rank, std::string how, Duration now) {
  auto& r = at(rank);
  if (r.stopped_since) return;
  r.stopped_since = now;
  r.how_stopped = std::move(how);
}

void Liveness::continued(int rank, Duration now) {
  auto& r = at(rank);
  r.stopped_since.reset();
  r.heard = now;  // it could not answer
}

std::vector<GivenUp> Liveness::check(Duration now) {
  std::vector<GivenUp> lost;
  for (int rank = 0; rank < limits_.world_size; ++rank) {
    auto& r = at(rank);
    if (r.given_up) continue;
    if (r.stopped_since) {
      if (now - *r.stopped_since >= limits_.stopped_grace)
        lost.push_back({rank, fmt::format("{} for {} (stopped_grace)", r.how_stopped, show(limits_.stopped_grace))});
    } else if (r.is_there && limits_.ping_deadline > Duration::zero() && now - r.heard >= limits_.ping_deadline) {
      lost.push_back({rank, fmt::format("silent: its control thread did not answer for {} (ping_deadline)",
                                        show(limits_.ping_deadline))});
    }
  }
  for (const auto& one : lost) at(one.rank).given_up = true;
  return lost;
}

std::vector<int> Liveness::pings(Duration now) {
  std::vector<int> due;
  if (now < next_ping_) return due;
  next_ping_ = now + limits_.ping_interval;
  for (int rank = 0; rank < limits_.world_size; ++rank) {
    const auto& r = at(rank);
    if (r.is_there && !r.stopped_since && !r.given_up) due.push_back(rank);
  }
  return due;
}

std::optional<Duration> Liveness::due() const {
  std::optional<Duration> next;
  const auto consider = [&](Duration time) { next = next ? std::min(*next, time) : time; };
  for (const auto& r : ranks_) {
    if (r.given_up) continue;
    if (r.stopped_since) {
      consider(*r.stopped_since + limits_.stopped_grace);
    } else if (r.is_there) {
      consider(next_ping_);
      if (limits_.ping_deadline > Duration::zero()) consider(r.heard + limits_.ping_deadline);
    }
  }
  return next;
}

}  // namespace troupe::engine
