// SPDX-License-Identifier: Apache-2.0
// Everything that carries collectives, for tests that hold for all of it. One more transport is one more line here.
#pragma once

#include <string>
#include <vector>

#include <troupe/torch_config.hpp>

#include "test/integration/support.hpp"

namespace troupe::test {

struct Transport {
  const char* name;
  TorchConfig config;
};

inline std::vector<Transport> transports() {
  return {{"shared memory", {.timeout_s = 20}},
          {"gloo", {.timeout_s = 20, .shared_memory = false}},
          {"two hosts", {.timeout_s = 20, .pretend_hosts = 2}}};
}

/// Calls `test(options)` for every transport and placement.
template <class Test>
void on_every_transport(int workers, Test&& test) {
  for (const auto& transport : transports())
    on_both_placements([&](Placement placement) {
      const std::string name = transport.name;
      DOCTEST_CAPTURE(name);
      test(TrainerOptions{.backend = transport.config, .num_workers = workers, .placement = placement});
    });
}

}  // namespace troupe::test
