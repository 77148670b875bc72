// SPDX-License-Identifier: Apache-2.0
// Host programs that tests watch from outside.
#pragma once

#include <string>
#include <string_view>

namespace troupe::test {

/// Plays the host of that name; gives the exit code.
int play_host(std::string_view name, const std::string& argument);

}  // namespace troupe::test
