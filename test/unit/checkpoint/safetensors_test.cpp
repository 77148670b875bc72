// SPDX-License-Identifier: Apache-2.0
// safetensors: round trips, and every rule of the format.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "checkpoint/interop/safetensors.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

using troupe::Checkpoint;
using troupe::DType;
using troupe::Json;
using troupe::TensorData;
using troupe::test::contains;
using troupe::test::read_file;
using troupe::test::TempFolder;
using troupe::test::thrown_by;

namespace {

std::string file_of(const std::string& header, std::size_t bytes) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(bytes, 'x');
}

Checkpoint import_bytes(const std::string& bytes) {
  const TempFolder folder;
  const auto path = folder.path() / "file.safetensors";
  std::ofstream(path, std::ios::binary) << bytes;
  return Checkpoint::import_safetensors(path).to_dict();
}

}  // namespace

DOCTEST_TEST_CASE("a flat dictionary of tensors goes through safetensors under its own names") {
  const TempFolder folder;
  const auto path = folder.path() / "model.safetensors";
  const Checkpoint saved{{"fc.weight", TensorData::of<float>({1, 2, 3, 4, 5, 6}, {{2, 3}})},
                         {"steps", TensorData::of<std::int64_t>({7}, std::vector<std::int64_t>{})},
                         {"flags", TensorData::of<std::uint8_t>({1, 0, 1})},
                         {"empty", TensorData::of<double>({}, {{0, 4}})}};
  saved.export_safetensors(path);
  std::map<std::string, std::string> metadata;
  DOCTEST_CHECK(Checkpoint::import_safetensors(path, &metadata) == saved);
  DOCTEST_CHECK(metadata == std::map<std::string, std::string>{{"format", "pt"}});
  for (const auto& [name, item] : Checkpoint::import_safetensors(path))  // aligned for its type
    DOCTEST_CHECK(reinterpret_cast<std::uintptr_t>(item.as<TensorData>().data()) %
                      troupe::size_of(item.as<TensorData>().dtype()) ==
                  0);
}

DOCTEST_TEST_CASE("nested dictionaries, lists and values come back from the metadata of safetensors") {
  const TempFolder folder;
  const auto path = folder.path() / "model.safetensors";
  const auto tensor = TensorData::of<float>({1, 2});
  const Checkpoint saved{{"epoch", 4},
                         {"name", "ü\n"},
                         {"model", {{"fc.weight", tensor}, {"fc", {{"bias", tensor}}}}},
                         {"list", {1, "two", tensor}},
                         {"losses", {1.5, INFINITY, -INFINITY}},
                         {"nothing", nullptr}};
  saved.export_safetensors(path);
  const auto loaded = Checkpoint::import_safetensors(path);
  DOCTEST_CHECK(loaded == saved);
  DOCTEST_CHECK(
      Json::parse(read_file(path).substr(8, read_file(path).find("}   ") - 7), nullptr, false).is_discarded() == false);
  Checkpoint nan;
  nan.set("x", std::nan(""));
  nan.export_safetensors(path);
  DOCTEST_CHECK(std::isnan(Checkpoint::import_safetensors(path).at<double>("x")));
}

DOCTEST_TEST_CASE("what safetensors cannot hold is refused by name, and no file is left") {
  const TempFolder folder;
  const auto path = folder.path() / "x";
  const auto tensor = TensorData::of<float>({1});
  const auto refused = [&](const Checkpoint& checkpoint) {
    return thrown_by([&] { checkpoint.export_safetensors(path); });
  };
  DOCTEST_CHECK(
      contains(refused({{"a.b", tensor}, {"a", {{"b", tensor}}}}), "\"a.b\" cannot be exported: two tensors"));
  DOCTEST_CHECK(contains(refused({{"__metadata__", tensor}}), "the name is taken"));
  DOCTEST_CHECK(contains(refused({{"a", {{"__tensor__", 1}}}}), "taken"));
  DOCTEST_CHECK(contains(refused({{"z", TensorData::copy_of(DType::complex128, {0}, nullptr)}}), "complex128"));
  Checkpoint packed;
  packed.set("state", Checkpoint::pack(std::string("x")));
  DOCTEST_CHECK(contains(refused(packed), "\"state\" cannot be exported"));
  DOCTEST_CHECK(std::filesystem::is_empty(folder.path()));
}

DOCTEST_TEST_CASE("a file that breaks a rule of safetensors is refused with the rule") {
  const std::string good =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})";
  DOCTEST_CHECK(import_bytes(file_of(good, 9)).size() == 2);
  const auto refused = [](const std::string& header, std::size_t bytes) {
    return thrown_by([&] { import_bytes(file_of(header, bytes)); });
  };
  const auto tensor = [&](const std::string& fields, std::size_t bytes = 8) {
    return refused(R"({"a":{)" + fields + "}}", bytes);
  };
  DOCTEST_CHECK(contains(refused(good, 8), "does not fit its place"));
  DOCTEST_CHECK(contains(refused(good, 10), "its bytes at 10"));
  DOCTEST_CHECK(contains(refused("[]", 0), "begin with '{'"));
  DOCTEST_CHECK(contains(refused(" {}", 0), "begin with '{'"));
  DOCTEST_CHECK(contains(refused("{", 0), "not JSON"));
  DOCTEST_CHECK(contains(refused("{}x", 0), "not JSON"));
  DOCTEST_CHECK(contains(refused("{\"\xff\":1}", 0), "not JSON"));
  DOCTEST_CHECK(contains(refused(R"({"a":1,"a":2})", 0), "\"a\" stands twice"));
  DOCTEST_CHECK(contains(refused(R"({"__metadata__":{"k":1}})", 0), "not a string"));
  DOCTEST_CHECK(contains(refused(R"({"__metadata__":{"k":"a","k":"b"}})", 0), "stands twice"));
  DOCTEST_CHECK(contains(refused(R"({"__metadata__":[]})", 0), "not an object"));
  DOCTEST_CHECK(contains(refused(R"({"a":1})", 0), "no list shape"));
  DOCTEST_CHECK(contains(refused("{\"a\":" + std::string(100'000, '['), 0), "nested too deeply"));
  DOCTEST_CHECK(contains(tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), "does not fit"));
  DOCTEST_CHECK(contains(tensor(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"), "unknown type F33"));
  DOCTEST_CHECK(contains(tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "not made of sizes"));
  DOCTEST_CHECK(contains(tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), "not made of sizes"));
  DOCTEST_CHECK(contains(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "does not fit"));
  DOCTEST_CHECK(contains(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), "two data_offsets"));
  DOCTEST_CHECK(contains(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)"), "nothing else"));
  DOCTEST_CHECK(
      contains(tensor(R"("dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0])"), "does not fit"));
  DOCTEST_CHECK(
      contains(tensor(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])"), "does not fit"));
  const auto two = [&](const std::string& first, const std::string& second, std::size_t bytes) {
    return refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
                       R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}",
                   bytes);
  };
  DOCTEST_CHECK(contains(two("[0,4]", "[5,9]", 9), "\"b\" begins at byte 5"));
  DOCTEST_CHECK(contains(two("[0,4]", "[3,7]", 7), "\"b\" begins at byte 3"));
  DOCTEST_CHECK(contains(two("[0,4]", "[0,4]", 4), "begins at byte 0"));
  DOCTEST_CHECK(contains(two("[4,8]", "[8,12]", 12), "begins at byte 4"));
}

DOCTEST_TEST_CASE("the length of a safetensors header is checked before it is believed") {
  const auto refused = [](const std::string& bytes) { return thrown_by([&] { import_bytes(bytes); }); };
  DOCTEST_CHECK(contains(refused(""), "less than 8 bytes"));
  DOCTEST_CHECK(contains(refused("1234567"), "less than 8 bytes"));
  DOCTEST_CHECK(contains(refused(std::string(8, '\xff')), "100 MB"));
  DOCTEST_CHECK(contains(refused(std::string("\x05\0\0\0\0\0\0\0{}", 10)), "ends inside its header"));
}

DOCTEST_TEST_CASE("the description of a checkpoint in safetensors metadata is checked") {
  const auto refused = [](const Json& values) {
    const Json header{{"__metadata__", {{"troupe", values.is_string() ? values : Json(values.dump())}}},
                      {"a", {{"dtype", "U8"}, {"shape", {1}}, {"data_offsets", {0, 1}}}}};
    return thrown_by([&] { import_bytes(file_of(header.dump(), 1)); });
  };
  const Json tensor{{"__tensor__", "a"}};
  DOCTEST_CHECK(refused({{"x", tensor}}) == "nothing");
  DOCTEST_CHECK(contains(refused("{"), "is not JSON"));
  DOCTEST_CHECK(contains(refused(Json::array({tensor})), "io: "));
  DOCTEST_CHECK(contains(refused(Json::object()), "does not name"));
  DOCTEST_CHECK(contains(refused({{"x", tensor}, {"y", {{"__tensor__", "b"}}}}), "not there"));
  DOCTEST_CHECK(contains(refused({{"x", tensor}, {"y", {{"__tensor__", 1}}}}), "not there"));
  DOCTEST_CHECK(contains(refused({{"x", tensor}, {"y", {{"__float__", "one"}}}}), "not a number"));
  std::string deep(100'000, '[');
  DOCTEST_CHECK(contains(refused(Json("{\"x\":" + deep + std::string(deep.size(), ']') + "}")), "nested too deeply"));
}
