// SPDX-License-Identifier: Apache-2.0
// EXPECT: a tensor is not a JSON value; for a metric take its number out with tensor.item<double>()
// EXPECT: all of it goes into a troupe::Checkpoint (a whole model: train::torch::state_dict(model))
#include <ATen/core/Tensor.h>

#include <troupe/fn.hpp>
#include <troupe/torch.hpp>

static at::Tensor train() { return {}; }

troupe::Fn use() { return troupe::fn<train>; }
