// SPDX-License-Identifier: Apache-2.0
// The peers of recovery.*: torchrun and Ray Train, in Python.
#pragma once

#include <string>

#include "bench/harness.hpp"

namespace troupe::bench {

/// Adds `<name>.torchrun` and `<name>.ray`: SIGKILL of a worker until all have made a new step. Who is not installed is
/// left out, with a word on stderr.
void add_peer(const Output& output, const std::string& name, int workers);

}  // namespace troupe::bench
