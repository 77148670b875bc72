// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <complex>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include <troupe/tensor_data.hpp>

#include "test/unit/thrown.hpp"

using troupe::DType;
using troupe::TensorData;
using troupe::test::contains;
using troupe::test::thrown_by;

DOCTEST_TEST_CASE("every tensor type has a name, a size and a way back from its name") {
  for (std::size_t number = 0; number < troupe::dtype_count; ++number) {
    const auto dtype = static_cast<DType>(number);
    DOCTEST_CHECK(troupe::dtype_from_string(to_string(dtype)) == dtype);
    DOCTEST_CHECK(size_of(dtype) >= 1);
  }
  DOCTEST_CHECK(to_string(DType::boolean) == "bool");
  DOCTEST_CHECK(to_string(DType::uint64) == "uint64");
  DOCTEST_CHECK(to_string(DType::bfloat16) == "bfloat16");
  DOCTEST_CHECK(size_of(DType::complex128) == 16);
  DOCTEST_CHECK(!troupe::dtype_from_string("float31"));
  DOCTEST_CHECK(contains(thrown_by([] { to_string(static_cast<DType>(99)); }), "99"));
}

DOCTEST_TEST_CASE("a tensor shares the bytes of its owner and keeps it alive") {
  auto values = std::make_shared<std::array<double, 4>>(std::array<double, 4>{1, 2, 3, 4});
  const std::weak_ptr<std::array<double, 4>> watch = values;
  const auto* first = values->data();
  {
    const TensorData tensor(DType::float64, {2, 2}, first, std::move(values));
    const auto copy = tensor;
    DOCTEST_CHECK(static_cast<const void*>(copy.data()) == first);
    DOCTEST_CHECK(copy.values<double>()[3] == 4);
    DOCTEST_CHECK(copy.describe() == "float64[2,2]");
    DOCTEST_CHECK(copy.bytes() == 32);
    DOCTEST_CHECK(copy.numel() == 4);
    DOCTEST_CHECK(!watch.expired());
  }
  DOCTEST_CHECK(watch.expired());
}

DOCTEST_TEST_CASE("scalars and empty tensors are tensors") {
  const auto scalar = TensorData::of<float>({7}, std::vector<std::int64_t>{});
  DOCTEST_CHECK(scalar.describe() == "float32[]");
  DOCTEST_CHECK(scalar.numel() == 1);
  const auto empty = TensorData::of<float>({}, std::vector<std::int64_t>{0, 5});
  DOCTEST_CHECK(empty.bytes() == 0);
  DOCTEST_CHECK(empty == TensorData(DType::float32, {0, 5}, nullptr, nullptr));
  DOCTEST_CHECK(TensorData() == TensorData());
}

DOCTEST_TEST_CASE("a shape that no tensor can have is refused") {
  const auto huge = std::numeric_limits<std::int64_t>::max();
  DOCTEST_CHECK(contains(thrown_by([] { TensorData(DType::uint8, {-1}, nullptr, nullptr); }), "[-1]"));
  DOCTEST_CHECK(contains(thrown_by([=] { TensorData(DType::float32, {huge, 2}, nullptr, nullptr); }), "too large"));
  DOCTEST_CHECK(contains(thrown_by([=] { TensorData(DType::float32, {0, huge, 2}, nullptr, nullptr); }), "too large"));
  DOCTEST_CHECK(contains(thrown_by([] { TensorData(DType::float32, {2}, nullptr, nullptr); }), "null pointer"));
  DOCTEST_CHECK(contains(thrown_by([] { TensorData::of<float>({1, 2}, std::vector<std::int64_t>{3}); }), "2 values"));
}

DOCTEST_TEST_CASE("values are read as the type they have, and aligned") {
  const auto tensor = TensorData::of<std::complex<float>>({{1, 2}});
  DOCTEST_CHECK(tensor.values<std::complex<float>>()[0].imag() == 2);
  DOCTEST_CHECK(contains(thrown_by([&] { tensor.values<float>(); }), "complex64[1]"));
  alignas(8) static constexpr std::array<char, 9> bytes{};
  const TensorData crooked(DType::int64, {1}, bytes.data() + 1, nullptr);
  DOCTEST_CHECK(contains(thrown_by([&] { crooked.values<std::int64_t>(); }), "not aligned"));
  std::int64_t value = 1;
  crooked.copy_to(&value);
  DOCTEST_CHECK(value == 0);
}

DOCTEST_TEST_CASE("rows of a larger tensor must fit into it") {
  const auto rows = TensorData::of<float>({1, 2, 3, 4}, std::vector<std::int64_t>{2, 2});
  DOCTEST_CHECK(rows.as_shard_of({6, 2}, 4).shard()->row_offset == 4);
  DOCTEST_CHECK(rows.as_shard_of({6, 2}, 4) != rows);
  DOCTEST_CHECK(contains(thrown_by([&] { rows.as_shard_of({6, 2}, 5); }), "does not fit"));
  DOCTEST_CHECK(contains(thrown_by([&] { rows.as_shard_of({6, 3}, 0); }), "does not fit"));
  DOCTEST_CHECK(contains(thrown_by([&] { rows.as_shard_of({6}, 0); }), "does not fit"));
  DOCTEST_CHECK(contains(thrown_by([&] { rows.as_shard_of({6, 2}, -1); }), "does not fit"));
}
