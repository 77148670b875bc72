// SPDX-License-Identifier: Apache-2.0
#include "test/node/lines.hpp"

#include <unistd.h>

namespace troupe::test {

bool read_line(int fd, std::string& line) {
  line.clear();
  for (char letter = 0; ::read(fd, &letter, 1) == 1;) {
    if (letter == '\n') {
      return true;
    }
    line += letter;
  }
  return false;
}

bool write_line(int fd, const std::string& line) {
  const auto text = line + "\n";
  return ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace troupe::test
