// SPDX-License-Identifier: Apache-2.0
// Lines over a descriptor, a byte at a time: slow and simple.
#pragma once

#include <string>

namespace troupe::test {

/// False at the end of the stream, or when a receive timeout is over.
bool read_line(int fd, std::string& line);
bool write_line(int fd, const std::string& line);

}  // namespace troupe::test
