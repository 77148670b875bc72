// SPDX-License-Identifier: Apache-2.0
// EXPECT: the call's arguments do not match the lambda's parameters
#include <troupe/worker_group.hpp>

int use(const troupe::WorkerHandle& worker) {
  return worker.execute([](int a, int b) { return a + b; }, 2);
}
