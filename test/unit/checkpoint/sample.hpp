// SPDX-License-Identifier: Apache-2.0
// A small checkpoint with one of everything.
#pragma once

#include <cstdint>
#include <vector>

#include <troupe/checkpoint.hpp>

namespace troupe::test {

inline Checkpoint sample() {
  const auto tensor = TensorData::of<float>({1, 2, 3}, std::vector<std::int64_t>{3, 1});
  return {{"epoch", 4},
          {"x", {1, 2.5, "three", nullptr, false}},
          {"model", {{"w", tensor}, {"half", TensorData(DType::bfloat16, {2}, "abcd", nullptr)}}},
          {"rows", tensor.as_shard_of({9, 1}, 3)},
          {"list", {tensor, "a", {{"b", tensor}}, {}}},
          {"empty", TensorData()},
          {"packed", Checkpoint::pack(std::vector{1, 2}, 9)},
          {"", "the empty key"}};
}

}  // namespace troupe::test
