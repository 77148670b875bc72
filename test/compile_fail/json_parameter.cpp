// SPDX-License-Identifier: Apache-2.0
// EXPECT: a train function takes no argument or one `const troupe::Config&`
#include <troupe/fn.hpp>

static int train(const troupe::Json& config) { return config["epochs"]; }

troupe::Fn use() { return troupe::fn<train>; }
