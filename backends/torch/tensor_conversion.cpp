// SPDX-License-Identifier: Apache-2.0
// at::Tensor to and from a checkpoint's tensors; random number generators.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/Generator.h>
#include <troupe/torch_checkpoint.hpp>

#include <array>
#include <mutex>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <torch/version.h>
#include <troupe/error.hpp>

#include "backends/torch/tensor_conversion.hpp"

namespace troupe::train::torch {
namespace {

/// By name, since older versions of libtorch lack some of the types.
constexpr std::array<std::pair<DType, std::string_view>, dtype_count> names{{
    {DType::uint8, "Byte"},
    {DType::int8, "Char"},
    {DType::int16, "Short"},
    {DType::int32, "Int"},
    {DType::int64, "Long"},
    {DType::float16, "Half"},
    {DType::float32, "Float"},
    {DType::float64, "Double"},
    {DType::complex32, "ComplexHalf"},
    {DType::complex64, "ComplexFloat"},
    {DType::complex128, "ComplexDouble"},
    {DType::boolean, "Bool"},
    {DType::bfloat16, "BFloat16"},
    {DType::float8_e4m3fn, "Float8_e4m3fn"},
    {DType::float8_e5m2, "Float8_e5m2"},
    {DType::float8_e4m3fnuz, "Float8_e4m3fnuz"},
    {DType::float8_e5m2fnuz, "Float8_e5m2fnuz"},
    {DType::uint16, "UInt16"},
    {DType::uint32, "UInt32"},
    {DType::uint64, "UInt64"},
}};

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::invalid_argument, why); }

DType dtype_of(const at::Tensor& tensor) {
  const std::string_view name = c10::toString(tensor.scalar_type());
  for (const auto& [dtype, torch_name] : names)
    if (torch_name == name) return dtype;
  refuse(
      fmt::format("a checkpoint cannot hold a tensor of type {}: convert it "
                  "with .to(), or dequantize() it",
                  name));
}

}  // namespace

at::ScalarType scalar_type_of(DType dtype) {
  for (const auto& [known, name] : names) {
    if (known != dtype) continue;
    for (int number = 0; number < static_cast<int>(at::ScalarType::NumOptions); ++number)
      if (name == c10::toString(static_cast<at::ScalarType>(number))) return static_cast<at::ScalarType>(number);
  }
  refuse(fmt::format("libtorch {} has no tensors of type {}", TORCH_VERSION, to_string(dtype)));
}

::troupe::TensorData to_tensor_data(const at::Tensor& tensor) {
  if (!tensor.defined()) refuse("a checkpoint cannot hold an undefined tensor: leave its entry out");
  if (tensor.layout() != at::kStrided)
    refuse(
        "a checkpoint cannot hold a sparse tensor: save tensor.to_dense(), "
        "or its indices and values");
  const auto dtype = dtype_of(tensor);
  // A lazy conjugate or negative is made real: only then do its bytes hold its
  // values.
  auto owner =
      std::make_shared<const at::Tensor>(tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous());
  return {dtype, owner->sizes().vec(), owner->data_ptr(), owner};
}

at::Tensor to_tensor(const ::troupe::TensorData& data) {
  auto tensor = at::empty(data.shape(), scalar_type_of(data.dtype()));
  if (data.bytes() != 0) data.copy_to(tensor.data_ptr());
  return tensor;
}

at::Tensor view_of(const ::troupe::TensorData& data) {
  const auto type = scalar_type_of(data.dtype());
  if (data.bytes() == 0) return at::empty(data.shape(), type);
  // from_blob() wants memory that it may change; the header says that nobody
  // does.
  return at::from_blob(
      const_cast<std::byte*>(data.data()), data.shape(), [owner = data.owner()](void*) mutable { owner.reset(); },
      at::TensorOptions(type));
}

at::Tensor rng_state(c10::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_rng_state(const at::Tensor& state, c10::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  try {
    generator.set_state(state);
  } catch (const c10::Error& error) {
    refuse(fmt::format("set_rng_state() needs a tensor that rng_state() gave: {}", error.what_without_backtrace()));
  }
}

}  // namespace troupe::train::torch
