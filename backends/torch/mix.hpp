// SPDX-License-Identifier: Apache-2.0
// Random numbers whose sequence is ours: the same on every platform, in every version.
#pragma once

#include <cstdint>

namespace troupe {

/// Spreads a number over all 64 bits (the finalizer of SplitMix64); one to one.
constexpr std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

/// SplitMix64.
class Mix64 {
public:
  constexpr explicit Mix64(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() {
    const auto value = mix(state_);
    state_ += 0x9e3779b97f4a7c15U;
    return value;
  }
  /// 0 to limit - 1, all equally likely.
  constexpr std::uint64_t below(std::uint64_t limit) {
    for (;;) {
      const auto value = next();
      // The last few values would make small numbers likelier; whether one is of those is seldom worth a division.
      if (value <= UINT64_MAX - limit || value <= UINT64_MAX - (UINT64_MAX % limit + 1) % limit) return value % limit;
    }
  }

private:
  std::uint64_t state_;
};

}  // namespace troupe
