// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/round_aligner.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace troupe::engine {

void RoundAligner::add(int rank, std::string report, Time now) {
  auto& slot = ranks_.at(static_cast<std::size_t>(rank));
  slot.reported += 1;
  if (slot.reported <= taken_) return;  // it was told to leave, and its round went without it
  if (slot.waiting.empty()) ranks_waiting_ += 1;
  slot.waiting_bytes += report.size();
  slot.waiting.push_back({slot.reported, std::move(report)});
  const auto lived = time_.advance(now);
  if (unconsumed_ == 0 && out_of_credit(slot) && !stalled_since_) stalled_since_ = lived;
}

void RoundAligner::finish(int rank) { ranks_.at(static_cast<std::size_t>(rank)).finished = true; }

void RoundAligner::regroup(const std::vector<int>& members, const std::vector<int>& newcomers) {
  regrouped_ = true;
  for (auto& slot : ranks_) slot.member = false;
  for (int rank : members) ranks_.at(static_cast<std::size_t>(rank)).member = true;
  const auto is_new = [&](int rank) { return std::find(newcomers.begin(), newcomers.end(), rank) != newcomers.end(); };
  std::int64_t furthest = taken_;
  for (int rank : members)
    if (!is_new(rank)) furthest = std::max(furthest, ranks_.at(static_cast<std::size_t>(rank)).reported);
  for (int rank : newcomers) {
    auto& slot = ranks_.at(static_cast<std::size_t>(rank));
    slot.reported = furthest;
    slot.finished = false;
    // The one before it was ahead of all others; it is told again.
    while (!slot.waiting.empty() && slot.waiting.back().round > furthest) {
      slot.waiting_bytes -= slot.waiting.back().bytes.size();
      slot.waiting.pop_back();
      if (slot.waiting.empty()) ranks_waiting_ -= 1;
    }
  }
  begin_stall();
}

bool RoundAligner::is_complete() const {
  if (!regrouped_) return ranks_waiting_ == ranks_.size();
  // A rank that is beyond the round without a report of it came later than that.
  return ranks_waiting_ > 0 && std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& slot) {
           return has_round(slot, taken_ + 1) || slot.reported > taken_ || !slot.member;
         });
}

std::optional<AlignedRound> RoundAligner::take() {
  if (!is_complete()) return std::nullopt;
  taken_ += 1;
  unconsumed_ += 1;
  AlignedRound round;
  round.ranks.reserve(ranks_.size());
  round.reports.reserve(ranks_.size());
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    auto& slot = ranks_[rank];
    if (!has_round(slot, taken_)) continue;
    slot.waiting_bytes -= slot.waiting.front().bytes.size();
    round.ranks.push_back(static_cast<int>(rank));
    round.reports.push_back(std::move(slot.waiting.front().bytes));
    slot.waiting.pop_front();
    if (slot.waiting.empty()) ranks_waiting_ -= 1;
  }
  stalled_since_.reset();  // whoever is out of credit gets some back
  return round;
}

void RoundAligner::consumed(std::size_t rounds) {
  unconsumed_ -= std::min(unconsumed_, rounds);
  begin_stall();
}

/// If there is one now; what was before does not count.
void RoundAligner::begin_stall() {
  stalled_since_.reset();
  if (unconsumed_ > 0) return;
  if (std::any_of(ranks_.begin(), ranks_.end(), [this](const Rank& slot) { return out_of_credit(slot); }))
    stalled_since_ = time_.lived();
}

bool RoundAligner::out_of_credit(const Rank& rank) const {
  return rank.waiting.size() >= limits_.window_reports || rank.waiting_bytes >= limits_.window_bytes;
}

std::optional<Failure> RoundAligner::check(Time now) {
  const bool short_rank = std::any_of(ranks_.begin(), ranks_.end(), [this](const Rank& slot) {
    return slot.finished && slot.member && slot.reported == taken_;
  });
  if (short_rank && ranks_waiting_ > 0) return unequal("a rank returned while others had reported more often");
  const auto lived = time_.advance(now);
  if (stalled_since_ && lived - *stalled_since_ >= limits_.report_deadline)
    return unequal(fmt::format("a rank waited {} ms (report_deadline) for the reports of others",
                               limits_.report_deadline.count()));
  return std::nullopt;
}

std::optional<Time> RoundAligner::deadline() const {
  if (!stalled_since_) return std::nullopt;
  return time_.when(*stalled_since_ + limits_.report_deadline);
}

Failure RoundAligner::unequal(const std::string& how) const {
  std::vector<std::size_t> members;  // a position among them is what people call a rank
  for (std::size_t place = 0; place < ranks_.size(); ++place)
    if (ranks_[place].member) members.push_back(place);
  const auto fewest = std::min_element(members.begin(), members.end(), [this](std::size_t a, std::size_t b) {
    return ranks_[a].reported < ranks_[b].reported;
  });
  std::string counts;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (rank == 16 && members.size() > 17) {
      counts += fmt::format(", and {} more ranks", members.size() - rank);
      break;
    }
    counts += fmt::format("{}rank {}: {}", rank == 0 ? "" : ", ", rank, ranks_[members[rank]].reported);
  }
  return {FailureKind::fatal,
          ErrorCode::unequal_reports,
          static_cast<int>(*fewest),
          fmt::format("ranks reported unequally often: {} ({}). Every rank must call train::report() equally often; "
                      "report on all ranks, not only on rank 0",
                      counts, how),
          {}};
}

}  // namespace troupe::engine
