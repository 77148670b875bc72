// SPDX-License-Identifier: Apache-2.0
// EXPECT: the result of a train function must be void or convertible to troupe::Json
#include <troupe/fn.hpp>

struct Model {
  void* weights = nullptr;
};
static Model train() { return {}; }

troupe::Fn use() { return troupe::fn<train>; }
