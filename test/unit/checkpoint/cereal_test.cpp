// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <troupe/cereal.hpp>

#include "test/unit/thrown.hpp"

using troupe::detail::Codec;
using troupe::test::contains;
using troupe::test::thrown_by;

namespace {

struct Batch {
  std::vector<float> values;
  std::map<std::string, std::int64_t> labels;
  std::optional<double> weight;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(values, labels, weight);
  }
  bool operator==(const Batch&) const = default;
};

/// Has both forms.
struct Both {
  int value = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value);
  }
  friend void to_json(troupe::Json& json, const Both& both) { json = both.value; }
  friend void from_json(const troupe::Json& json, Both& both) { both.value = json.get<int>(); }
};

struct SplitForm {
  int value = 0;
  template <class Archive>
  void save(Archive& archive) const {
    archive(value);
  }
  template <class Archive>
  void load(Archive& archive) {
    archive(value);
    if (value < 0) throw troupe::Error(troupe::ErrorCode::user_code, "negative");
  }
};

struct NoForm {
  int value = 0;
};

static_assert(troupe::detail::CerealSerializable<Batch>);
static_assert(troupe::detail::CerealSerializable<std::vector<Batch>>);
static_assert(troupe::detail::CerealSerializable<SplitForm>);
static_assert(!troupe::detail::CerealSerializable<Both>);
static_assert(!troupe::detail::CerealSerializable<int>);
static_assert(!troupe::detail::CerealSerializable<std::vector<int>>);
static_assert(!troupe::detail::CerealSerializable<NoForm>);

const Batch batch{{1.5F, -2.0F}, {{"cat", 3}, {"dog", 4}}, 0.25};

}  // namespace

DOCTEST_TEST_CASE("a type with serialize() comes back as it was, alone, in a vector and among arguments") {
  DOCTEST_CHECK(Codec<Batch>::decode(Codec<Batch>::encode(batch)) == batch);
  DOCTEST_CHECK(Codec<Batch>::decode(Codec<Batch>::encode({})) == Batch{});
  const std::vector<Batch> batches{batch, {}};
  DOCTEST_CHECK(Codec<std::vector<Batch>>::decode(Codec<std::vector<Batch>>::encode(batches)) == batches);
  const auto bytes = troupe::detail::encode_all(7, batch, std::string("text"));
  const auto [number, back, text] = troupe::detail::decode_all<int, Batch, std::string>(bytes);
  DOCTEST_CHECK(number == 7);
  DOCTEST_CHECK(back == batch);
  DOCTEST_CHECK(text == "text");
}

DOCTEST_TEST_CASE("a type with both forms travels as JSON") {
  DOCTEST_CHECK(Codec<Both>::encode({5}) == troupe::detail::pack(5));
  DOCTEST_CHECK(Codec<Both>::decode(troupe::detail::pack(6)).value == 6);
}

DOCTEST_TEST_CASE("cereal bytes that are cut or too long are refused") {
  const auto whole = Codec<Batch>::encode(batch);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    DOCTEST_CAPTURE(size);
    DOCTEST_CHECK(contains(thrown_by([&] { Codec<Batch>::decode(whole.substr(0, size)); }), "invalid_argument: "));
  }
  DOCTEST_CHECK(contains(thrown_by([&] { Codec<Batch>::decode(whole + "x"); }), "bytes are left over"));
}

DOCTEST_TEST_CASE("a length that no memory can hold is refused") {
  const std::string bytes = '\x01' + std::string(8, '\x7f');
  DOCTEST_CHECK(contains(thrown_by([&] { Codec<Batch>::decode(bytes); }), "invalid_argument: "));
}

DOCTEST_TEST_CASE("an error of the type's own load() passes") {
  DOCTEST_CHECK(
      contains(thrown_by([] { Codec<SplitForm>::decode(Codec<SplitForm>::encode({-1})); }), "user_code: negative"));
}
