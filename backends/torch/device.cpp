// SPDX-License-Identifier: Apache-2.0
// Which device a worker computes on.
#include <troupe/torch_model.hpp>

namespace troupe::train::torch {

c10::Device get_device() { return c10::Device(c10::kCPU); }

}  // namespace troupe::train::torch
