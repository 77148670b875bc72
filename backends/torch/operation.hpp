// SPDX-License-Identifier: Apache-2.0
// What a rank does where all ranks must do the same: small enough to be compared at every operation.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <troupe/torch_collectives.hpp>

namespace troupe {

class Operation {
public:
  /// One cache line.
  using Words = std::array<std::int64_t, 8>;
  enum class Kind { barrier, all_reduce, broadcast, all_gather, reduce_scatter, make_buffer, begin_buffers };

  explicit Operation(Kind kind) : Operation(kind, at::ScalarType::Undefined, {}) {}
  Operation(Kind kind, at::ScalarType type, at::IntArrayRef sizes,
            train::torch::Reduce reduce = train::torch::Reduce::sum, int root = 0);

  const Words& words() const { return words_; }

  /// Such as "all_reduce(sum) of Float [2, 3]".
  static std::string describe(const Words& words);
  /// Throws invalid_argument that says who called what, unless all are equal; `ranks` are their world ranks.
  static void require_equal(const std::vector<Words>& all, const std::vector<int>& ranks, int my_rank);

private:
  Words words_{};
};

}  // namespace troupe
