// SPDX-License-Identifier: Apache-2.0
// EXPECT: a lambda with captures cannot be sent; pass the values as arguments of the call
#include <troupe/worker_group.hpp>

int use(const troupe::WorkerHandle& worker, int factor) {
  return worker.execute([factor](int value) { return factor * value; }, 2);
}
