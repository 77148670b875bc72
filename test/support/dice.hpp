// SPDX-License-Identifier: Apache-2.0
// Chance in fault tests: another one each time, the same again with TROUPE_SEED.
#pragma once

#include <cstdlib>
#include <random>

namespace troupe::test {

inline unsigned any_seed() {
  const char* given = std::getenv("TROUPE_SEED");
  return given ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
}

class Dice {
public:
  explicit Dice(unsigned seed) : random_(seed) {}
  int below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }

private:
  std::mt19937 random_;
};

}  // namespace troupe::test
