// SPDX-License-Identifier: Apache-2.0
#include "actors/round_flow.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

RoundFlow::Added RoundFlow::add(int rank, const std::string& bytes, const std::vector<std::uint32_t>& sizes,
                                detail::ReportOrigin origin, engine::Time now) {
  // All ranks go on from the same checkpoint; a rank that joined later has none.
  if (rounds_ == 0 && origin.reports >= origin_.reports) {
    origin_.reports = origin.reports;
    origin_.resumed |= origin.resumed;
  }
  std::size_t at = 0;
  for (auto size : sizes) {
    if (at + size > bytes.size()) break;
    aligner_.add(rank, bytes.substr(at, size), now);
    at += size;
  }
  return deliver();
}

RoundFlow::Added RoundFlow::deliver() {
  std::vector<detail::Round> rounds;
  const bool first = rounds_ == 0;
  while (auto round = aligner_.take()) {
    auto& credit = delivered_.emplace_back();
    for (std::size_t i = 0; i < round->ranks.size(); ++i)
      credit.push_back({round->ranks[i], static_cast<std::uint32_t>(round->reports[i].size())});
    rounds.push_back({generation_, attempt_, origin_.reports + ++rounds_, std::move(round->reports)});
  }
  if (rounds.empty()) return {};
  const auto given = run_->add_rounds(std::move(rounds), origin_.resumed);
  Added added{first, given.is_new && !progress_};
  progress_ |= given.is_new;
  // They are the attempt's first, so their sizes are in front.
  if (given.dropped > 0) added.credits = consumed(static_cast<std::uint32_t>(given.dropped));
  return added;
}

std::vector<wire::Credit> RoundFlow::consumed(std::uint32_t rounds) {
  aligner_.consumed(rounds);
  std::vector<wire::Credit> credits(places_, wire::Credit{generation_, 0, 0});
  for (; rounds > 0 && !delivered_.empty(); --rounds, delivered_.pop_front())
    for (const auto& [rank, bytes] : delivered_.front()) {
      auto& credit = credits[static_cast<std::size_t>(rank)];
      credit.reports += 1;
      credit.bytes += bytes;
    }
  return credits;
}

RoundFlow::Added RoundFlow::regroup(const std::vector<int>& members, const std::vector<int>& newcomers) {
  aligner_.regroup(members, newcomers);
  progress_ = false;  // what comes now tells that going on has helped
  // A newcomer has all its credit; what is still on its way belongs to the one before it.
  for (auto& round : delivered_)
    std::erase_if(round, [&](const auto& entry) {
      return std::find(newcomers.begin(), newcomers.end(), entry.first) != newcomers.end();
    });
  return deliver();
}

}  // namespace troupe
