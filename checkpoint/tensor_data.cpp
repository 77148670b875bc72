// SPDX-License-Identifier: Apache-2.0
#include <troupe/tensor_data.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>

#include <troupe/error.hpp>

#include "checkpoint/large_copy.hpp"

namespace troupe {
namespace {

struct DTypeTraits {
  std::string_view name;
  std::size_t size;
};

/// In the order of the enum.
constexpr std::array<DTypeTraits, dtype_count> dtypes{{
    {"uint8", 1},           {"int8", 1},          {"int16", 2},       {"int32", 4},
    {"int64", 8},           {"float16", 2},       {"float32", 4},     {"float64", 8},
    {"complex32", 4},       {"complex64", 8},     {"complex128", 16}, {"bool", 1},
    {"bfloat16", 2},        {"float8_e4m3fn", 1}, {"float8_e5m2", 1}, {"float8_e4m3fnuz", 1},
    {"float8_e5m2fnuz", 1}, {"uint16", 2},        {"uint32", 4},      {"uint64", 8},
}};

const DTypeTraits& traits_of(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  if (index < dtypes.size()) return dtypes[index];
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is not the number of a tensor type; those known are 0 to {}", index, dtype_count - 1));
}

std::string show_shape(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

std::size_t require_size(DType dtype, const std::vector<std::int64_t>& shape) {
  if (auto size = detail::tensor_size(dtype, shape)) return *size;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("no tensor can have the shape {}: a dimension is negative, or the whole is too large",
                          show_shape(shape)));
}

class MemoryBytes : public detail::TensorBytes {
public:
  MemoryBytes(const void* data, std::shared_ptr<const void> owner)
      : data_(static_cast<const std::byte*>(data)), owner_(std::move(owner)) {}
  const std::byte* data() const override { return data_; }
  void copy_to(std::byte* destination, std::size_t size) const override {
    if (destination != data_) detail::copy_large(destination, data_, size);
  }

private:
  const std::byte* data_;
  std::shared_ptr<const void> owner_;
};

}  // namespace

std::string_view to_string(DType dtype) { return traits_of(dtype).name; }

std::size_t size_of(DType dtype) { return traits_of(dtype).size; }

std::optional<DType> dtype_from_string(std::string_view name) {
  for (std::size_t index = 0; index < dtypes.size(); ++index)
    if (dtypes[index].name == name) return static_cast<DType>(index);
  return std::nullopt;
}

TensorData::TensorData() : TensorData(DType::float32, {0}, nullptr, nullptr) {}

TensorData::TensorData(DType dtype, std::vector<std::int64_t> shape, const void* data,
                       std::shared_ptr<const void> owner)
    : TensorData(dtype, std::move(shape), std::make_shared<const MemoryBytes>(data, std::move(owner))) {
  if (data == nullptr && bytes() > 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("the tensor {} has no bytes (a null pointer)", describe()));
}

TensorData::TensorData(DType dtype, std::vector<std::int64_t> shape, std::shared_ptr<const detail::TensorBytes> bytes) {
  const auto size = require_size(dtype, shape);
  rep_ = std::make_shared<const Rep>(Rep{dtype, std::move(shape), size, std::move(bytes), std::nullopt});
}

TensorData TensorData::copy_of(DType dtype, std::vector<std::int64_t> shape, const void* data) {
  const auto size = require_size(dtype, shape);
  std::shared_ptr<std::byte[]> copy(new std::byte[size]);
  if (size > 0) std::memcpy(copy.get(), data, size);
  const auto* first = copy.get();
  return {dtype, std::move(shape), first, std::move(copy)};
}

TensorData TensorData::as_shard_of(std::vector<std::int64_t> global_shape, std::int64_t row_offset) const {
  const auto& rows = shape();
  const bool fits = !rows.empty() && rows.size() == global_shape.size() && row_offset >= 0 &&
                    detail::tensor_size(dtype(), global_shape) && row_offset <= global_shape[0] &&
                    rows[0] <= global_shape[0] - row_offset &&
                    std::equal(rows.begin() + 1, rows.end(), global_shape.begin() + 1);
  if (!fits)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} does not fit as rows {} and on into a tensor of shape {}: all dimensions but the first "
                            "must be equal, and the rows must lie inside",
                            describe(), row_offset, show_shape(global_shape)));
  auto rep = std::make_shared<Rep>(*rep_);
  rep->shard = TensorShard{std::move(global_shape), row_offset};
  TensorData result = *this;
  result.rep_ = std::move(rep);
  return result;
}

std::string TensorData::describe() const { return fmt::format("{}{}", to_string(dtype()), show_shape(shape())); }

void TensorData::require_count(const std::vector<std::int64_t>& shape, std::size_t count) {
  if (require_size(DType::uint8, shape) != count)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a tensor of shape {} cannot be made of {} values", show_shape(shape), count));
}

void TensorData::require_type(DType wanted, std::size_t alignment) const {
  if (dtype() != wanted)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the tensor is {}, so its values cannot be read as {}", describe(), to_string(wanted)));
  if (reinterpret_cast<std::uintptr_t>(data()) % alignment != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the bytes of the tensor {} are not aligned: copy them with copy_to()", describe()));
}

bool operator==(const TensorData& left, const TensorData& right) {
  if (left.rep_ == right.rep_) return true;
  if (left.dtype() != right.dtype() || left.shape() != right.shape() || left.shard() != right.shard()) return false;
  return left.bytes() == 0 || std::memcmp(left.data(), right.data(), left.bytes()) == 0;
}

namespace detail {

std::optional<std::size_t> tensor_size(DType dtype, const std::vector<std::int64_t>& shape) {
  std::int64_t size = static_cast<std::int64_t>(size_of(dtype));
  bool is_empty = false;
  for (const auto dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0)
      is_empty = true;  // the others must still fit, so that nobody's product overflows
    else if (__builtin_mul_overflow(size, dimension, &size))
      return std::nullopt;
  }
  return is_empty ? 0 : static_cast<std::size_t>(size);
}

}  // namespace detail
}  // namespace troupe
