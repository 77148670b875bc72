// SPDX-License-Identifier: Apache-2.0
// EXPECT: a train function takes no argument or one `const troupe::Config&`
#include <troupe/fn.hpp>

static void train(void* state) { static_cast<void>(state); }

troupe::Fn use() { return troupe::fn<train>; }
