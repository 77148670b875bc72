// SPDX-License-Identifier: Apache-2.0
// The end of a process in words.
#pragma once

#include <string>

namespace troupe::node {

/// "SIGKILL"; "signal 40" where there is no name.
std::string signal_name(int signal_number);
/// "killed by SIGKILL (out of memory?)": the signal with its likely cause.
std::string killed_text(int signal_number);
/// The same for a signal that this program sent itself.
std::string killed_by_us_text(int signal_number);
/// "exited with status 3".
std::string exited_text(int status);
/// Why fork() failed, and what to change.
std::string fork_failed_text(int error);

}  // namespace troupe::node
