// SPDX-License-Identifier: Apache-2.0
// EXPECT: put it into a checkpoint (a model: train::torch::state_dict(model))
#include <torch/nn/modules/linear.h>

#include <troupe/fn.hpp>
#include <troupe/torch.hpp>

static torch::nn::Linear train() { return {2, 1}; }

troupe::Fn use() { return troupe::fn<train>; }
