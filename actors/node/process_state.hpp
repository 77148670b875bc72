// SPDX-License-Identifier: Apache-2.0
// What init_processes() leaves for the Node.
#pragma once

#include <string>
#include <vector>

#include "actors/node/fork_server.hpp"
#include "actors/node/node.hpp"

namespace troupe::node {

struct ProcessState {
  bool initialized = false;
  bool is_worker = false;  ///< this is a worker process; it has no Node
  std::string program_name;
  std::vector<std::string> environment;
  ForkServer early;  ///< forked in init_processes(), until a Node takes it
};

/// Never destroyed: threads may use it while the program exits.
ProcessState& process_state();

}  // namespace troupe::node
