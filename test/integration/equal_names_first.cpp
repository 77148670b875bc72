// SPDX-License-Identifier: Apache-2.0
#include "test/integration/equal_names.hpp"

namespace {
std::string train_func() { return "first file"; }
}  // namespace

namespace troupe::test {
Fn function_of_first_file() { return fn<train_func>; }
}  // namespace troupe::test
