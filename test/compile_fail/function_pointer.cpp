// SPDX-License-Identifier: Apache-2.0
// EXPECT: write troupe::fn<train_func>
#include <troupe/fn.hpp>

static int train() { return 1; }

troupe::Fn use() { return train; }
