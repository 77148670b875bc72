// SPDX-License-Identifier: Apache-2.0
// What the saver saves and the test expects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>

namespace troupe::test {

inline Checkpoint state(std::uint64_t id, std::size_t size) {
  return {{"epoch", id},
          {"model", {{"w", TensorData::of(std::vector<std::uint64_t>(size / 8, id))}}},
          {"name", "number " + std::to_string(id)}};
}

}  // namespace troupe::test
