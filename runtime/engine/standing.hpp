// SPDX-License-Identifier: Apache-2.0
// Where a rank stands in its run, as it tells the group now and then.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/engine/failure.hpp"

namespace troupe::engine {

/// A rank that counts as lost though its process lives, and why: "stopped by SIGSTOP for 2 s (stopped_grace)".
struct GivenUp {
  int rank;
  std::string cause;
};

/// Workers are watched by their place; texts name the rank that a place has at the moment.
using RankOfPlace = std::function<int(int)>;

/// "2 s", "250 ms".
inline std::string show(Duration time) {
  const bool whole = time.count() % 1000 == 0;
  return std::to_string(whole ? time.count() / 1000 : time.count()) + (whole ? " s" : " ms");
}

enum class WaitsFor : std::uint8_t { nobody, group, driver };

struct Standing {
  std::uint64_t progress = 0;   ///< counts reports, saves, collectives, steps
  std::int64_t rounds = 0;      ///< reported so far
  std::int64_t compute_us = 0;  ///< time of these rounds, without the waiting for others
  WaitsFor waits_for = WaitsFor::nobody;
  std::string doing{};  ///< "all_reduce()"; empty: the user's own code
};

}  // namespace troupe::engine
