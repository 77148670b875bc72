// SPDX-License-Identifier: Apache-2.0
// EXPECT: a lambda with captures (or a std::function) cannot be sent
#include <functional>

#include <troupe/fn.hpp>

troupe::Fn use(const std::function<int()>& function) { return function; }
