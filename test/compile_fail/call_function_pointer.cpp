// SPDX-License-Identifier: Apache-2.0
// EXPECT: call it from a lambda without captures
#include <troupe/worker_group.hpp>

static int twice(int value) { return 2 * value; }

int use(const troupe::WorkerHandle& worker) { return worker.execute(twice, 2); }
