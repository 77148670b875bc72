// SPDX-License-Identifier: Apache-2.0
// EXPECT: a tensor is not a JSON value; for a metric take its number out with tensor.item<double>()
#include <ATen/core/Tensor.h>

#include <troupe/torch.hpp>
#include <troupe/train.hpp>

void use(const at::Tensor& loss) { troupe::train::report({{"loss", loss}}); }
