// SPDX-License-Identifier: Apache-2.0
// Small host programs for tests about the end of the host: each starts a worker and tells, on stdout, a line with the
// pids of its fork server and its worker.
#pragma once

#include <string_view>

namespace troupe::test {

int play_host(std::string_view name);

}  // namespace troupe::test
