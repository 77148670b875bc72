// SPDX-License-Identifier: Apache-2.0
#include "actors/round_flow.hpp"

#include <utility>

namespace troupe {

bool RoundFlow::add(int rank, const std::string& bytes, const std::vector<std::uint32_t>& sizes, engine::Time now) {
  std::size_t at = 0;
  for (auto size : sizes) {
    if (at + size > bytes.size()) break;
    aligner_.add(rank, bytes.substr(at, size), now);
    at += size;
  }
  return deliver();
}

bool RoundFlow::deliver() {
  std::vector<detail::Round> rounds;
  while (auto reports = aligner_.take()) {
    for (std::size_t i = 0; i < delivered_.size(); ++i)
      delivered_[i].push_back(static_cast<std::uint32_t>((*reports)[i].size()));
    rounds.push_back({generation_, attempt_, ++round_, std::move(*reports)});
  }
  if (rounds.empty()) return false;
  const bool first = rounds.front().number == 1;
  run_->add_rounds(std::move(rounds));
  return first;
}

std::vector<wire::Credit> RoundFlow::consumed(std::uint32_t rounds) {
  std::vector<wire::Credit> credits;
  credits.reserve(delivered_.size());
  for (auto& sizes : delivered_) {
    wire::Credit credit{generation_, 0, 0};
    for (; credit.reports < rounds && !sizes.empty(); ++credit.reports) {
      credit.bytes += sizes.front();
      sizes.pop_front();
    }
    credits.push_back(credit);
  }
  return credits;
}

}  // namespace troupe
