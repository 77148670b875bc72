// SPDX-License-Identifier: Apache-2.0
// EXPECT: a call takes a lambda without captures whose parameters have types (no auto)
#include <troupe/worker_group.hpp>

int use(const troupe::WorkerHandle& worker) {
  return worker.execute([](auto value) { return value; }, 2);
}
