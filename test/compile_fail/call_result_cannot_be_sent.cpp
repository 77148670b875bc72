// SPDX-License-Identifier: Apache-2.0
// EXPECT: this type cannot be sent to a worker; give it to_json()/from_json(), or include <troupe/cereal.hpp>
#include <troupe/worker_group.hpp>

struct Model {
  void* weights = nullptr;
};

void use(const troupe::WorkerHandle& worker) {
  worker.execute([] { return Model{}; });
}
