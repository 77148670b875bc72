// SPDX-License-Identifier: Apache-2.0
// EXPECT: a train function takes no argument or one `const troupe::Config&`
#include <troupe/fn.hpp>

troupe::Fn use() {
  return [](double lr) noexcept { return lr; };
}
