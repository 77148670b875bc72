// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <troupe/tensor_data.hpp>

namespace troupe::train::torch {

/// libtorch's name of a type; throws invalid_argument when this version has no
/// such tensors.
at::ScalarType scalar_type_of(DType dtype);

}  // namespace troupe::train::torch
