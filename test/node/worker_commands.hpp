// SPDX-License-Identifier: Apache-2.0
// The worker of these tests: obeys commands, one a line, that come over its stream socket, and answers each with a
// line.
#pragma once

#include "actors/node/node.hpp"

namespace troupe::test {

void obey_commands(const node::WorkerStart& start);

}  // namespace troupe::test
