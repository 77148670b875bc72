// SPDX-License-Identifier: Apache-2.0
// EXPECT: the result of a train function must be void, convertible to troupe::Json or a troupe::Checkpoint
#include <troupe/fn.hpp>

struct Model {
  void* weights = nullptr;
};
static Model train() { return {}; }

troupe::Fn use() { return troupe::fn<train>; }
