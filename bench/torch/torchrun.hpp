// SPDX-License-Identifier: Apache-2.0
// The peer: DistributedDataParallel in Python, started by torchrun.
#pragma once

#include <string>
#include <vector>

#include <troupe/json.hpp>

namespace troupe::bench {

/// Runs the cases ("name:rounds:steps") on 2 workers; gives the rates of each by name. An empty object, with a word on
/// stderr, where Python ($TROUPE_BENCH_PYTHON, else python3) has no torch.
Json run_torchrun(const std::vector<std::string>& cases);

/// What a script of peers/ prints, a JSON list; empty, with its word on stderr, where what it needs is missing.
Json run_peer(const std::string& script, const std::vector<std::string>& arguments);

}  // namespace troupe::bench
