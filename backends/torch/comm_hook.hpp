// SPDX-License-Identifier: Apache-2.0
// Gradient buckets that are averaged in another way than as they are.
#pragma once

#include <memory>

#include <troupe/torch_model.hpp>

#include "backends/torch/collective.hpp"

namespace troupe {

/// A buffer for one bucket, as the hook wants it. Collective. `bucket.values` is set by this.
std::unique_ptr<ReduceBuffer> make_gradient_buffer(Collective& collective, const train::torch::CommHook& hook,
                                                   std::int64_t elements, const at::TensorOptions& options,
                                                   train::torch::GradientBucket bucket);

}  // namespace troupe
