// SPDX-License-Identifier: Apache-2.0
// EXPECT: no known conversion for argument 1 from 'Model' to 'const troupe::Json&'
#include <troupe/train.hpp>

struct Model {
  void* weights = nullptr;
};

void use() { troupe::train::report(Model{}); }
