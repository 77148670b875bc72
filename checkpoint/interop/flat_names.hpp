// SPDX-License-Identifier: Apache-2.0
// Checkpoints as flat lists of named tensors, which is all that safetensors know.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <troupe/checkpoint.hpp>

namespace troupe::detail {

struct FlatCheckpoint {
  /// Keys joined by dots: "model.fc.weight".
  std::vector<std::pair<std::string, TensorData>> tensors;
  /// Everything else, with {"__tensor__": name} where a tensor stands; null if the names alone give the checkpoint
  /// back.
  Json values;
};

/// Throws invalid_argument for what cannot be written so: packed values, two tensors with one name.
FlatCheckpoint to_flat_names(const Checkpoint& checkpoint);
/// Throws invalid_argument unless all tensors are used and all that are named are there.
Checkpoint from_flat_names(const FlatCheckpoint& flat);

}  // namespace troupe::detail
