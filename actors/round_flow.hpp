// SPDX-License-Identifier: Apache-2.0
// The reports of one attempt on their way to the consumer, round by round, and their credit on its way back.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages.hpp"
#include "actors/run.hpp"
#include "runtime/engine/round_aligner.hpp"

namespace troupe {

class RoundFlow {
public:
  RoundFlow(std::shared_ptr<detail::Run> run, int attempt, std::uint64_t generation,
            engine::RoundAligner::Limits limits)
      : run_(std::move(run)),
        attempt_(attempt),
        generation_(generation),
        aligner_(limits),
        delivered_(static_cast<std::size_t>(limits.world_size)) {}

  /// Reports of one rank, one after the other in `bytes`. True when they completed the first round.
  bool add(int rank, const std::string& bytes, const std::vector<std::uint32_t>& sizes, engine::Time now);
  /// The rank returned; it will report no more.
  void finish(int rank) { aligner_.finish(rank); }

  /// The failure of ranks that reported unequally often, and when to ask again; see RoundAligner.
  std::optional<engine::Failure> check(engine::Time now) const { return aligner_.check(now); }
  std::optional<engine::Time> deadline() const { return aligner_.deadline(); }

  /// The consumer is done with that many rounds: what each rank gets back.
  std::vector<wire::Credit> consumed(std::uint32_t rounds);

private:
  bool deliver();

  std::shared_ptr<detail::Run> run_;
  int attempt_;
  std::uint64_t generation_;
  std::int64_t round_ = 0;
  engine::RoundAligner aligner_;
  std::vector<std::deque<std::uint32_t>> delivered_;  // by rank, sizes of reports that the consumer has not taken yet
};

}  // namespace troupe
