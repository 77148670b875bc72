// SPDX-License-Identifier: Apache-2.0
#include <troupe/init.hpp>

#include <atomic>
#include <cstdlib>

#include "actors/node/node.hpp"
#include "actors/system.hpp"
#include "runtime/interrupts.hpp"

namespace troupe {
namespace {

std::atomic<bool> init_done{false};

/// False if the user has chosen a policy.
bool choose_passive_threads() {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return false;
  ::setenv("OMP_WAIT_POLICY", "PASSIVE", 1);
  return true;
}

}  // namespace

void init(int argc, char** argv, InitOptions options) {
  if (init_done.exchange(true)) return;
  const bool is_changed = options.passive_threads && choose_passive_threads();
  node::init_processes(argc, argv, worker_process_main,
                       is_changed ? node::FirstServer::executed : node::FirstServer::forked);
  enable_interrupts(options.signal_handlers);
}

bool initialized() { return init_done; }

}  // namespace troupe
