// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <troupe/codec.hpp>

#include "test/unit/thrown.hpp"

using troupe::test::contains;
using troupe::test::thrown_by;
namespace detail = troupe::detail;

DOCTEST_TEST_CASE("fields come back in order, empty and binary ones too") {
  const std::string binary("a\0\xff", 3);
  const std::string large(70'000, 'x');
  std::string out;
  for (const auto& field : {std::string(), binary, large}) detail::append_field(out, field);
  std::string_view rest = out;
  DOCTEST_CHECK(detail::take_field(rest).empty());
  DOCTEST_CHECK(detail::take_field(rest) == binary);
  DOCTEST_CHECK(detail::take_field(rest) == large);
  DOCTEST_CHECK(rest.empty());
}

DOCTEST_TEST_CASE("fields that end too early are refused") {
  std::string whole;
  detail::append_field(whole, "abc");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::string_view cut = std::string_view(whole).substr(0, size);
    DOCTEST_CAPTURE(size);
    DOCTEST_CHECK(contains(thrown_by([&] { detail::take_field(cut); }), "invalid_argument: "));
    DOCTEST_CHECK(cut.size() == size);
  }
  std::string_view huge("\xff\xff\xff\xff abc");
  DOCTEST_CHECK(contains(thrown_by([&] { detail::take_field(huge); }), "4294967295 announced"));
}

DOCTEST_TEST_CASE("arguments of several types come back as they were") {
  const std::map<std::string, int> counts{{"a", 1}};
  const auto bytes =
      detail::encode_all(3, 0.5, std::string("text"), std::vector<int>{1, 2}, counts, troupe::Json{{"k", 1}});
  const auto [i, d, s, v, m, j] =
      detail::decode_all<int, double, std::string, std::vector<int>, std::map<std::string, int>, troupe::Json>(bytes);
  DOCTEST_CHECK(i == 3);
  DOCTEST_CHECK(d == 0.5);
  DOCTEST_CHECK(s == "text");
  DOCTEST_CHECK(v == std::vector<int>{1, 2});
  DOCTEST_CHECK(m == counts);
  DOCTEST_CHECK(j.dump() == R"({"k":1})");
}
