// SPDX-License-Identifier: Apache-2.0
// Memory, descriptors and threads of this process and of all that descend from it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace troupe::bench {

struct ProcessMemory {
  std::string name;
  double rss_mb = 0;
  double pss_mb = 0;  ///< pages shared by k processes count 1/k
  int descriptors = 0;
  int threads = 0;
};

/// By process id: this program, its fork server and its workers.
std::map<int, ProcessMemory> memory_of_tree();

}  // namespace troupe::bench
