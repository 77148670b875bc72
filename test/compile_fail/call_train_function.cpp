// SPDX-License-Identifier: Apache-2.0
// EXPECT: a troupe::fn<> is for run()
#include <troupe/worker_group.hpp>

static int train() { return 1; }

void use(const troupe::WorkerHandle& worker) { worker.execute(troupe::fn<train>); }
