// SPDX-License-Identifier: Apache-2.0
// Small checkpoints as bytes: what comes back is what went in, and bytes from outside do no harm.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "test/unit/checkpoint/sample.hpp"
#include "test/unit/thrown.hpp"

using troupe::Checkpoint;
using troupe::CheckpointItem;
using troupe::DType;
using troupe::TensorData;
using troupe::detail::decode;
using troupe::detail::encode;
using troupe::test::contains;
using troupe::test::sample;
using troupe::test::thrown_by;

DOCTEST_TEST_CASE("a checkpoint of everything comes back as it was") {
  const auto all = sample();
  const auto back = decode(encode(all));
  DOCTEST_CHECK(back == all);
  DOCTEST_CHECK(back.begin()->first == "epoch");
  DOCTEST_CHECK(back["model"]["half"].as<TensorData>().dtype() == DType::bfloat16);
  DOCTEST_CHECK(back.at<TensorData>("rows").shard()->row_offset == 3);
  DOCTEST_CHECK(back["packed"].packed_version() == 9);
  DOCTEST_CHECK(decode(encode({})).empty());
  DOCTEST_CHECK(troupe::detail::Codec<Checkpoint>::decode(troupe::detail::Codec<Checkpoint>::encode(all)) == all);
}

DOCTEST_TEST_CASE("bytes that are cut anywhere are refused") {
  const auto whole = encode(sample());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    DOCTEST_CAPTURE(size);
    DOCTEST_CHECK(contains(thrown_by([&] { decode(std::string_view(whole).substr(0, size)); }), "invalid_argument: "));
  }
  DOCTEST_CHECK(contains(thrown_by([&] { decode(whole + "x"); }), "invalid_argument: "));
}

DOCTEST_TEST_CASE("bytes with any byte changed are read or refused, never worse") {
  const auto whole = encode(sample());
  int refused = 0;
  for (std::size_t place = 0; place < whole.size(); ++place) {
    for (const char flip : {'\x01', '\x80', '\xff'}) {
      auto bytes = whole;
      bytes[place] = static_cast<char>(bytes[place] ^ flip);
      const auto error = thrown_by([&] { decode(bytes); });
      DOCTEST_CAPTURE(place);
      if (error == "nothing") continue;
      ++refused;
      DOCTEST_CHECK(contains(error, "invalid_argument: "));
    }
  }
  DOCTEST_CHECK(refused > 0);
}

DOCTEST_TEST_CASE("random bytes are refused") {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = encode({}).substr(0, round % 14);
    for (int i = 0; i < 100; ++i) bytes += static_cast<char>(random() % (round % 2 == 0 ? 256 : 3));
    const auto error = thrown_by([&] { decode(bytes); });
    DOCTEST_CHECK(contains(error, "invalid_argument: "));
  }
}

DOCTEST_TEST_CASE("what is nested too deep, or has a key too long, is refused when it is written") {
  CheckpointItem deep = 1;
  for (int level = 0; level < 98; ++level) deep = CheckpointItem(Checkpoint{{"d", deep}});
  DOCTEST_CHECK(decode(encode({{"d", deep}})).contains("d"));
  for (int level = 0; level < 3; ++level) deep = CheckpointItem(Checkpoint{{"d", deep}});
  DOCTEST_CHECK(contains(thrown_by([&] { encode({{"d", deep}}); }), "levels deep"));
  DOCTEST_CHECK(contains(thrown_by([] { encode({{std::string(5000, 'k'), 1}}); }), "a key of 5000 bytes"));
  const TensorData thin(DType::uint8, std::vector<std::int64_t>(65, 1), "x", nullptr);
  DOCTEST_CHECK(contains(thrown_by([&] { encode({{"thin", thin}}); }), "more than 64 dimensions"));
}
