// SPDX-License-Identifier: Apache-2.0
// The reports of one attempt on their way to the consumer, round by round, and their credit on its way back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/messages.hpp"
#include "actors/run.hpp"
#include "runtime/engine/round_aligner.hpp"
#include "runtime/session/report_channel.hpp"

namespace troupe {

class RoundFlow {
public:
  RoundFlow(std::shared_ptr<detail::Run> run, int attempt, std::uint64_t generation,
            engine::RoundAligner::Limits limits)
      : run_(std::move(run)),
        attempt_(attempt),
        generation_(generation),
        aligner_(limits),
        places_(static_cast<std::size_t>(limits.world_size)) {}

  /// What reports have brought about.
  struct Added {
    bool worked = false;                  ///< the attempt's first round is complete
    bool progress = false;                ///< its first round that no earlier attempt had come to
    std::vector<wire::Credit> credits{};  ///< for rounds that the consumer has seen before; by rank, empty if none
  };
  /// Reports of one rank, one after the other in `bytes`.
  Added add(int rank, const std::string& bytes, const std::vector<std::uint32_t>& sizes, detail::ReportOrigin origin,
            engine::Time now);
  /// The rank returned; it will report no more.
  void finish(int rank) { aligner_.finish(rank); }

  /// The group goes on with these ranks; see RoundAligner.
  Added regroup(const std::vector<int>& members, const std::vector<int>& newcomers);

  /// The failure of ranks that reported unequally often, and when to ask again; see RoundAligner.
  std::optional<engine::Failure> check(engine::Time now) { return aligner_.check(now); }
  std::optional<engine::Time> deadline() const { return aligner_.deadline(); }

  /// How many reports a rank has made, those before the checkpoint that it went on from included.
  std::int64_t reported(int rank, std::int64_t origin = 0) const {
    return std::max(origin_.reports, origin) + aligner_.reported(rank);
  }

  /// The consumer is done with that many rounds: what each rank gets back.
  std::vector<wire::Credit> consumed(std::uint32_t rounds);

private:
  Added deliver();

  std::shared_ptr<detail::Run> run_;
  int attempt_;
  std::uint64_t generation_;
  detail::ReportOrigin origin_;
  std::int64_t rounds_ = 0;
  bool progress_ = false;
  engine::RoundAligner aligner_;
  std::size_t places_;
  // By round, ranks and sizes of reports that the consumer has not taken yet.
  std::deque<std::vector<std::pair<int, std::uint32_t>>> delivered_;
};

}  // namespace troupe
