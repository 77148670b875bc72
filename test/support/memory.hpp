// SPDX-License-Identifier: Apache-2.0
// Tests that need a lot of memory.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

namespace troupe::test {

inline std::size_t megabytes_free() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit; file >> name;) {
    std::size_t amount = 0;
    file >> amount;
    if (name == "MemAvailable:") {
      return amount >> 10;
    }
    std::getline(file, unit);
  }
  return 0;
}

/// In pages of the usual size: their number is what makes the end of a process take long.
inline void use_memory(std::size_t megabytes) {
  const auto size = megabytes << 20;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::runtime_error("no memory");
  }
  ::madvise(memory, size, MADV_NOHUGEPAGE);
  std::memset(memory, 1, size);
}

}  // namespace troupe::test
