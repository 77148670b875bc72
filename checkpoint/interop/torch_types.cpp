// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/interop/torch_types.hpp"

#include <array>
#include <utility>

namespace troupe::detail {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 12> classes{{
    {DType::float64, "DoubleStorage"},
    {DType::float32, "FloatStorage"},
    {DType::float16, "HalfStorage"},
    {DType::bfloat16, "BFloat16Storage"},
    {DType::int64, "LongStorage"},
    {DType::int32, "IntStorage"},
    {DType::int16, "ShortStorage"},
    {DType::int8, "CharStorage"},
    {DType::uint8, "ByteStorage"},
    {DType::boolean, "BoolStorage"},
    {DType::complex64, "ComplexFloatStorage"},
    {DType::complex128, "ComplexDoubleStorage"},
}};

}  // namespace

std::optional<DType> storage_dtype(std::string_view global) {
  if (global == "torch.UntypedStorage" || global == "torch.storage.UntypedStorage") return DType::uint8;
  constexpr std::string_view prefix = "torch.";
  if (!global.starts_with(prefix)) return std::nullopt;
  for (const auto& [dtype, name] : classes)
    if (global.substr(prefix.size()) == name) return dtype;
  return std::nullopt;
}

std::optional<DType> torch_dtype(std::string_view global) {
  constexpr std::string_view prefix = "torch.";
  if (!global.starts_with(prefix)) return std::nullopt;
  return dtype_from_string(global.substr(prefix.size()));
}

std::string_view storage_class(DType dtype) {
  for (const auto& [type, name] : classes)
    if (type == dtype) return name;
  return {};
}

}  // namespace troupe::detail
