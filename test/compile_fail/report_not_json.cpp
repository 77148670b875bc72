// SPDX-License-Identifier: Apache-2.0
// EXPECT: from expression of type 'Model'
#include <troupe/train.hpp>

struct Model {
  void* weights = nullptr;
};

void use() { troupe::train::report(Model{}); }
