// SPDX-License-Identifier: Apache-2.0
// EXPECT: a train function takes no argument or one `const troupe::Config&`
#include <troupe/fn.hpp>

static int train(int epochs, double lr) { return epochs > lr; }

troupe::Fn use() { return troupe::fn<train>; }
