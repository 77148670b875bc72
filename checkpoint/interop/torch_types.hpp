// SPDX-License-Identifier: Apache-2.0
// Names that Python's torch has for the types of tensors and storages.
#pragma once

#include <optional>
#include <string_view>

#include <troupe/tensor_data.hpp>

namespace troupe::detail {

/// "torch.FloatStorage" -> float32; bytes for "torch.storage.UntypedStorage".
std::optional<DType> storage_dtype(std::string_view global);
/// "torch.float32" -> float32.
std::optional<DType> torch_dtype(std::string_view global);
/// "FloatStorage", or empty: newer types have only untyped storages.
std::string_view storage_class(DType dtype);

}  // namespace troupe::detail
