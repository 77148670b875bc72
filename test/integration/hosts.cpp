// SPDX-License-Identifier: Apache-2.0
#include "test/integration/hosts.hpp"
namespace troupe::test {
int play_host(std::string_view, const std::string&) { return 1; }
}
