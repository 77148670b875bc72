// SPDX-License-Identifier: Apache-2.0
// What a PyTorchTrainer runs on its workers; <troupe/torch_creators.hpp> makes it from creators.
#pragma once

#include <troupe/fn.hpp>

namespace troupe {

/// Functions for workers, each of the config {"config", "batch_size"}.
struct TrainingPass {
  Fn train;     ///< one pass over the training data; saves the state behind it
  Fn validate;  ///< one pass over the validation data, with the state that it is given
};

}  // namespace troupe
