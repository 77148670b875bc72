// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>
#include <troupe/json.hpp>

namespace troupe {

/// What the function returned, in rank order: a list of JSON. If it returned checkpoints, checkpoint() has them; in the
/// list stands the folder of one that was too large for a message, null for others.
class RunResults : public std::vector<Json> {
public:
  RunResults() = default;
  /// From what came out of the workers.
  explicit RunResults(std::vector<Json> results);

  /// The checkpoint that this rank returned. Throws invalid_argument when it returned none, io when its folder is
  /// damaged or gone.
  Checkpoint checkpoint(int rank = 0) const;

private:
  struct Returned {
    std::optional<Checkpoint> checkpoint;
    std::string error;  ///< why it could not be opened
  };
  std::vector<Returned> returned_;
};

}  // namespace troupe
