// SPDX-License-Identifier: Apache-2.0
// A tensor as a checkpoint holds it: type, shape and bytes, free of any tensor library.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

/// The type of a tensor's elements. Append only: the numbers stand in files.
enum class DType : std::uint8_t {
  uint8 = 0,
  int8 = 1,
  int16 = 2,
  int32 = 3,
  int64 = 4,
  float16 = 5,
  float32 = 6,
  float64 = 7,
  complex32 = 8,
  complex64 = 9,
  complex128 = 10,
  boolean = 11,
  bfloat16 = 12,
  float8_e4m3fn = 13,
  float8_e5m2 = 14,
  float8_e4m3fnuz = 15,
  float8_e5m2fnuz = 16,
  uint16 = 17,
  uint32 = 18,
  uint64 = 19,
};
inline constexpr std::size_t dtype_count = 20;

/// The name as torch spells it: "float32", "bool".
std::string_view to_string(DType dtype);
/// Bytes of one element.
std::size_t size_of(DType dtype);
/// The type with this name, or nothing.
std::optional<DType> dtype_from_string(std::string_view name);

/// Says that a tensor is some rows of a larger one, the rest of which other ranks hold.
struct TensorShard {
  std::vector<std::int64_t> global_shape;
  std::int64_t row_offset = 0;  ///< the first row of the larger tensor that is here

  bool operator==(const TensorShard&) const = default;
};

namespace detail {

/// Where a tensor's bytes are. Bytes that come from a file are checked before they are handed out.
class TensorBytes {
public:
  virtual ~TensorBytes() = default;
  /// The first byte; throws io when the bytes are not those that were saved.
  virtual const std::byte* data() const = 0;
  /// Copies all bytes; what arrives is what was saved, or it throws io.
  virtual void copy_to(std::byte* destination, std::size_t size) const = 0;
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::uint8> {};
template <>
struct DTypeOf<std::int8_t> : std::integral_constant<DType, DType::int8> {};
template <>
struct DTypeOf<std::int16_t> : std::integral_constant<DType, DType::int16> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::int32> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::int64> {};
template <>
struct DTypeOf<std::uint16_t> : std::integral_constant<DType, DType::uint16> {};
template <>
struct DTypeOf<std::uint32_t> : std::integral_constant<DType, DType::uint32> {};
template <>
struct DTypeOf<std::uint64_t> : std::integral_constant<DType, DType::uint64> {};
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::float32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::float64> {};
template <>
struct DTypeOf<bool> : std::integral_constant<DType, DType::boolean> {};
template <>
struct DTypeOf<std::complex<float>> : std::integral_constant<DType, DType::complex64> {};
template <>
struct DTypeOf<std::complex<double>> : std::integral_constant<DType, DType::complex128> {};

}  // namespace detail

/// A tensor of a checkpoint: contiguous, row-major, never changed, cheap to copy (copies share the bytes). Several
/// threads may read one. Tensors of a checkpoint on disk are read when they are first touched.
class TensorData {
public:
  /// An empty one: float32[0].
  TensorData();
  /// Bytes that `owner` keeps alive and nobody changes. Throws invalid_argument for a negative or far too large shape.
  TensorData(DType dtype, std::vector<std::int64_t> shape, const void* data, std::shared_ptr<const void> owner);
  TensorData(DType dtype, std::vector<std::int64_t> shape, std::shared_ptr<const detail::TensorBytes> bytes);
  /// A tensor with its own copy of the bytes.
  static TensorData copy_of(DType dtype, std::vector<std::int64_t> shape, const void* data);
  /// Takes a vector over; without a shape it is one-dimensional.
  template <class T>
  static TensorData of(std::vector<T> values, std::optional<std::vector<std::int64_t>> shape = std::nullopt) {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no bytes: use std::vector<std::uint8_t>");
    auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    auto dimensions = shape ? *std::move(shape) : std::vector<std::int64_t>{static_cast<std::int64_t>(owner->size())};
    require_count(dimensions, owner->size());
    return {detail::DTypeOf<T>::value, std::move(dimensions), owner->data(), owner};
  }

  DType dtype() const { return rep_->dtype; }
  const std::vector<std::int64_t>& shape() const { return rep_->shape; }
  std::size_t numel() const { return rep_->bytes / size_of(rep_->dtype); }
  /// Size of the elements in bytes.
  std::size_t bytes() const { return rep_->bytes; }

  /// The elements; throws io when they come from a file and do not verify. Valid as long as owner() lives.
  const std::byte* data() const { return rep_->source->data(); }
  /// Copies the elements, and checks them while it does, which is faster than data() and a copy.
  void copy_to(void* destination) const { rep_->source->copy_to(static_cast<std::byte*>(destination), rep_->bytes); }
  /// The elements as T's; throws invalid_argument when they are of another type.
  template <class T>
  std::span<const T> values() const {
    require_type(detail::DTypeOf<T>::value, alignof(T));
    return {reinterpret_cast<const T*>(data()), numel()};
  }
  /// Keeps the bytes alive.
  std::shared_ptr<const void> owner() const { return rep_->source; }

  /// The same bytes as rows of a larger tensor. Throws invalid_argument when they do not fit into it.
  TensorData as_shard_of(std::vector<std::int64_t> global_shape, std::int64_t row_offset) const;
  const std::optional<TensorShard>& shard() const { return rep_->shard; }

  /// "float32[2,3]".
  std::string describe() const;

  /// Type, shape and every byte.
  friend bool operator==(const TensorData& left, const TensorData& right);

private:
  struct Rep {
    DType dtype = DType::float32;
    std::vector<std::int64_t> shape;
    std::size_t bytes = 0;
    std::shared_ptr<const detail::TensorBytes> source;
    std::optional<TensorShard> shard;
  };
  static void require_count(const std::vector<std::int64_t>& shape, std::size_t count);
  void require_type(DType wanted, std::size_t alignment) const;

  std::shared_ptr<const Rep> rep_;
};

namespace detail {

/// Bytes of a tensor, or nothing when a dimension is negative or the product does not fit.
std::optional<std::size_t> tensor_size(DType dtype, const std::vector<std::int64_t>& shape);

}  // namespace detail
}  // namespace troupe
