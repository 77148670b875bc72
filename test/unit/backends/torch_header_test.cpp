// SPDX-License-Identifier: Apache-2.0
// <troupe/torch_json.hpp> without torch: a stand-in for libtorch's scalar. That a tensor does not compile as a metric
// is shown by the compile-fail tests.
#include <doctest/doctest.h>

#include <complex>
#include <cstdint>
#include <string>
#include <variant>

#include <troupe/torch_json.hpp>

#include "test/unit/thrown.hpp"

using troupe::test::thrown_by;

namespace {

class Scalar {
public:
  explicit Scalar(std::variant<bool, std::int64_t, double, std::complex<double>> value) : value_(value) {}
  // NOLINTBEGIN(readability-identifier-naming): libtorch's names
  bool isBoolean() const { return value_.index() == 0; }
  bool isIntegral(bool with_bool) const { return value_.index() == 1 || (with_bool && isBoolean()); }
  bool isFloatingPoint() const { return value_.index() == 2; }
  bool toBool() const { return std::get<0>(value_); }
  std::int64_t toLong() const { return std::get<1>(value_); }
  double toDouble() const { return std::get<2>(value_); }
  // NOLINTEND(readability-identifier-naming)

private:
  std::variant<bool, std::int64_t, double, std::complex<double>> value_;
};

}  // namespace

DOCTEST_TEST_CASE("a scalar of libtorch is a metric, unless it is complex") {
  const auto json_of = [](const Scalar& scalar) {
    troupe::Json json;
    troupe::detail::scalar_to_json(json, scalar);
    return json.dump();
  };
  DOCTEST_CHECK(json_of(Scalar(true)) == "true");
  DOCTEST_CHECK(json_of(Scalar(std::int64_t{3})) == "3");
  DOCTEST_CHECK(json_of(Scalar(0.5)) == "0.5");
  const auto text = thrown_by([&] { json_of(Scalar(std::complex<double>(1, 2))); });
  DOCTEST_CHECK(text.starts_with("invalid_argument: a complex scalar"));
}
