// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace troupe {

/// Which checkpoints of a run stay on disk. Fields stand in Ray's argument order.
struct CheckpointStrategy {
  /// Not set: all. 0: none, nothing is written to disk. N: the N best.
  std::optional<int> num_to_keep = {};
  /// The number in the checkpoint (or in the metrics reported with it) that tells good from bad. "_timestamp": the
  /// newer is the better.
  std::string checkpoint_score_attribute = "_timestamp";
  /// "max" or "min".
  std::string checkpoint_score_order = "max";
};

}  // namespace troupe
