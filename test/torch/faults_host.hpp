// SPDX-License-Identifier: Apache-2.0
// A host program that a test kills.
#pragma once

namespace troupe::test {

/// Two workers that reduce for ever; says the pids of the whole tree once they do. Never returns.
int train_for_ever();

}  // namespace troupe::test
