// SPDX-License-Identifier: Apache-2.0
// A dictionary with tensors, from one rank to those that need it.
#pragma once

#include <optional>

#include <troupe/checkpoint.hpp>

#include "backends/torch/collective.hpp"

namespace troupe {

/// Collective. All who want it get the root's `state`. They give what they have themselves: its memory takes the
/// tensors of equal place, type and shape (new memory for large ones would cost most of the time), so it is lost even
/// if this throws. Ranks that do not want it only take part, and get nothing.
std::optional<Checkpoint> broadcast_state(Collective& collective, int root, const Checkpoint& state, bool wanted);

}  // namespace troupe
