// SPDX-License-Identifier: Apache-2.0
#include "bench/torch/recovery_peers.hpp"

#include <exception>
#include <iostream>
#include <vector>

#include "bench/torch/torchrun.hpp"

namespace troupe::bench {

void add_peer(const Output& output, const std::string& name, int workers) {
  for (const auto* peer : {"torchrun", "ray"}) {
    try {
      const auto samples = run_peer("recovery_" + std::string(peer) + ".py", {std::to_string(workers)});
      std::vector<double> times;
      for (const auto& sample : samples) times.push_back(sample.get<double>());
      if (!times.empty()) output.add({name + "." + peer, median(times), "ms", times.size(), 1e9});
    } catch (const std::exception& error) {  // a peer that does not come back is no reason to end
      std::cerr << name << "." << peer << " is left out: " << error.what() << "\n";
    }
  }
}

}  // namespace troupe::bench
