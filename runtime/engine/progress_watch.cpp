// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/progress_watch.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace troupe::engine {
namespace {

std::string place(const Standing& standing) {
  return fmt::format("after round {}, in {}", standing.rounds, standing.doing.empty() ? "user code" : standing.doing);
}

}  // namespace

void ProgressWatch::began(int rank, Duration now) {
  at(rank) = Rank{.runs = true, .changed = now};
  warned_ = false;
}

void ProgressWatch::lost(int rank, Duration now) {
  at(rank) = Rank{};
  for (auto& r : ranks_) r.changed = now;
}

void ProgressWatch::seen(int rank, const Standing& standing, Duration now) {
  auto& r = at(rank);
  if (standing.progress != r.standing.progress) r.changed = now;
  r.standing = standing;
}

std::vector<int> ProgressWatch::stalled(Duration limit, Duration now) const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (ranks_[i].runs && now - ranks_[i].changed >= limit) ranks.push_back(static_cast<int>(i));
  return ranks;
}

bool ProgressWatch::all_run_out(const std::vector<int>& stalled) const {
  return std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.runs; }) ==
         static_cast<std::ptrdiff_t>(stalled.size());
}

/// Those in user code; if all ranks wait for each other, those who came least far. Who waits for the driver is not to
/// blame, and who waits for a rank that makes progress must wait.
std::vector<int> ProgressWatch::blockers(const std::vector<int>& stalled) const {
  const auto of_kind = [&](WaitsFor kind) {
    std::vector<int> found;
    for (int rank : stalled)
      if (at(rank).standing.waits_for == kind) found.push_back(rank);
    return found;
  };
  if (auto in_user_code = of_kind(WaitsFor::nobody); !in_user_code.empty()) return in_user_code;
  if (!all_run_out(stalled)) return {};
  auto waiting = of_kind(WaitsFor::group);
  auto least = std::numeric_limits<std::uint64_t>::max();
  for (int rank : waiting) least = std::min(least, at(rank).standing.progress);
  std::erase_if(waiting, [&](int rank) { return at(rank).standing.progress != least; });
  return waiting;
}

std::optional<std::string> ProgressWatch::warning(Duration now) {
  if (deadline_ == Duration::zero()) return std::nullopt;
  const auto slow = stalled(deadline_ / 2, now);
  if (slow.empty()) warned_ = false;
  if (slow.empty() || warned_) return std::nullopt;
  const auto guilty = blockers(slow);
  if (guilty.empty() && !all_run_out(slow)) return std::nullopt;
  warned_ = true;
  const char* advice =
      guilty.empty() ? "; all wait for the driver: does a callback, or the loop over rounds, hang?" : "";
  return fmt::format("no progress for {}, half of progress_deadline: {}{}", show(deadline_ / 2), describe(now), advice);
}

std::vector<GivenUp> ProgressWatch::check(Duration now) {
  std::vector<GivenUp> lost;
  if (deadline_ == Duration::zero()) return lost;
  // Its end is under way, and the others wait for it.
  if (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.given_up; })) return lost;
  for (int rank : blockers(stalled(deadline_, now))) {
    lost.push_back({rank, fmt::format("stuck: no progress for {} (progress_deadline), {}", show(deadline_),
                                      place(at(rank).standing))});
    at(rank).given_up = true;
  }
  return lost;
}

std::string ProgressWatch::describe(Duration now) const {
  std::string text;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const auto& r = ranks_[i];
    if (!r.runs && r.rests == nullptr) continue;
    text += fmt::format("{}rank {} ", text.empty() ? "" : "; ", rank_of_(static_cast<int>(i)));
    text += r.runs ? fmt::format("{} for {}", place(r.standing), show(now - r.changed)) : r.rests;
  }
  return text;
}

}  // namespace troupe::engine
