// SPDX-License-Identifier: Apache-2.0
#include <troupe/init.hpp>

#include <atomic>

#include "actors/node/node.hpp"
#include "actors/system.hpp"
#include "runtime/interrupts.hpp"

namespace troupe {
namespace {

std::atomic<bool> init_done{false};

}  // namespace

void init(int argc, char** argv, InitOptions options) {
  if (init_done.exchange(true)) return;
  node::init_processes(argc, argv, worker_process_main);
  enable_interrupts(options.signal_handlers);
}

bool initialized() { return init_done; }

}  // namespace troupe
