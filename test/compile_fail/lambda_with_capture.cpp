// SPDX-License-Identifier: Apache-2.0
// EXPECT: a lambda with captures (or a std::function) cannot be sent; pass the values in the run's config
#include <troupe/fn.hpp>

troupe::Fn use(int epochs) {
  return [epochs] { return epochs; };
}
