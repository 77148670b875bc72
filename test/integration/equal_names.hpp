// SPDX-License-Identifier: Apache-2.0
// Two files have a static function `train_func` each.
#pragma once

#include <troupe/fn.hpp>

namespace troupe::test {

Fn function_of_first_file();
Fn function_of_second_file();

}  // namespace troupe::test
