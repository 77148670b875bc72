// SPDX-License-Identifier: Apache-2.0
// The dictionary: built from braces, read, compared, printed, copied.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <troupe/cereal.hpp>
#include <troupe/checkpoint.hpp>

#include "test/unit/thrown.hpp"

using troupe::Checkpoint;
using troupe::CheckpointItem;
using troupe::Json;
using troupe::TensorData;
using troupe::test::contains;
using troupe::test::thrown_by;

namespace {

/// Stands for a tensor library's tensor.
struct Matrix {
  std::vector<float> values;
  bool operator==(const Matrix&) const = default;
};

struct Sampler {
  int seed = 0;
  std::vector<std::int64_t> order;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(seed, order);
  }
  bool operator==(const Sampler&) const = default;
};

std::string show(const auto& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

const TensorData tensor = TensorData::of<float>({1, 2, 3, 4, 5, 6}, std::vector<std::int64_t>{2, 3});

/// What a function such as save_checkpoint() gets from braces.
std::string save(const Checkpoint& checkpoint) { return show(checkpoint); }

}  // namespace

template <>
struct troupe::CheckpointTraits<Matrix> {
  static CheckpointItem to_item(const Matrix& matrix) { return TensorData::of<float>(matrix.values); }
  static Matrix from_item(const CheckpointItem& item) {
    const auto data = item.as<TensorData>();
    const auto values = data.values<float>();
    return {{values.begin(), values.end()}};
  }
};

DOCTEST_TEST_CASE("braces with one entry are a dictionary") {
  DOCTEST_CHECK(save({{"epoch", 4}}) == R"({"epoch":4})");
  DOCTEST_CHECK(save({{"name", "resnet"}}) == R"({"name":"resnet"})");
  DOCTEST_CHECK(save({{"pair", {"a", "b"}}}) == R"({"pair":["a","b"]})");
  DOCTEST_CHECK(save({{"model", {{"w", tensor}}}}) == R"({"model":{"w":float32[2,3]}})");
  DOCTEST_CHECK(save({{"model", {{"name", "resnet"}}}}) == R"({"model":{"name":"resnet"}})");
  DOCTEST_CHECK(save({{"model", tensor}}) == R"({"model":float32[2,3]})");
}

DOCTEST_TEST_CASE("braces with several entries, nested ones and empty ones") {
  DOCTEST_CHECK(save({{"epoch", 4}, {"model", 10}}) == R"({"epoch":4,"model":10})");
  DOCTEST_CHECK(save({{"a", "b"}, {"c", "d"}}) == R"({"a":"b","c":"d"})");
  DOCTEST_CHECK(save({{"epoch", 4}, {"model", {{"w", tensor}, {"bias", {{"b", tensor}, {"n", nullptr}}}}}}) ==
                R"({"epoch":4,"model":{"w":float32[2,3],"bias":{"b":float32[2,3],"n":null}}})");
  DOCTEST_CHECK(save({{"list", {1, 2.5, true, "x"}}, {"tensors", {tensor, tensor}}}) ==
                R"({"list":[1,2.5,true,"x"],"tensors":[float32[2,3],float32[2,3]]})");
  DOCTEST_CHECK(save({{"opt", {}}}) == R"({"opt":{}})");
  DOCTEST_CHECK(save({{"steps", {{1, 2}, {3, 4}}}}) == R"({"steps":[[1,2],[3,4]]})");
  DOCTEST_CHECK(save({}) == "{}");
  DOCTEST_CHECK(save({{}}) == "{}");
}

DOCTEST_TEST_CASE("braces around a checkpoint, one pair too many or too few, mean the same") {
  const Checkpoint one{{"epoch", 4}};
  const Checkpoint copy{one};
  DOCTEST_CHECK(copy == one);
  DOCTEST_CHECK(save({one}) == R"({"epoch":4})");
  DOCTEST_CHECK(save({{{"epoch", 4}, {"x", 1}}}) == R"({"epoch":4,"x":1})");
  DOCTEST_CHECK(save({"epoch", 4}) == R"({"epoch":4})");
  const std::optional<Checkpoint> optional = {{"name", "resnet"}};
  DOCTEST_CHECK(show(optional.value()) == R"({"name":"resnet"})");
  struct Options {
    Checkpoint checkpoint = {};
    int other = 0;
  };
  DOCTEST_CHECK(show(Options{.checkpoint = {{"name", "resnet"}}}.checkpoint) == R"({"name":"resnet"})");
  DOCTEST_CHECK(show(Options{.checkpoint = {{"a", 1}, {"b", tensor}}}.checkpoint) == R"({"a":1,"b":float32[2,3]})");
}

DOCTEST_TEST_CASE("variables of many types go in and come out") {
  const std::string name = "resnet";
  const std::vector<std::string> names{"a", "b"};
  const std::map<std::string, int> sizes{{"x", 1}};
  const Json json{{"lr", 0.5}, {"layers", {{{"n", 1}}, {{"n", 2}}}}};
  const Matrix matrix{{1, 2}};
  const Checkpoint nested{{"t", tensor}};
  const Checkpoint all{{"name", name},
                       {"names", names},
                       {"sizes", sizes},
                       {"json", json},
                       {"m", matrix},
                       {"nested", nested},
                       {"flag", true},
                       {"big", std::uint64_t{1} << 63},
                       {"x", 0.5},
                       {"none", nullptr},
                       {"ms", std::vector<Matrix>{matrix, matrix}},
                       {"mm", std::map<std::string, Matrix>{{"k", matrix}}}};
  DOCTEST_CHECK(all.at<std::string>("name") == name);
  DOCTEST_CHECK(all.at<std::vector<std::string>>("names") == names);
  DOCTEST_CHECK(all.at<std::map<std::string, int>>("sizes") == sizes);
  DOCTEST_CHECK(all.at<Json>("json") == json);
  DOCTEST_CHECK(all.at<Checkpoint>("json").at<double>("lr") == 0.5);
  DOCTEST_CHECK(all["json"]["layers"].at(1)["n"] == 2);
  DOCTEST_CHECK(all.at<Matrix>("m") == matrix);
  DOCTEST_CHECK(all.at<Checkpoint>("nested").at<TensorData>("t") == tensor);
  DOCTEST_CHECK(all.at<bool>("flag"));
  DOCTEST_CHECK(all.at<std::uint64_t>("big") == std::uint64_t{1} << 63);
  DOCTEST_CHECK(all.at<float>("x") == 0.5F);
  DOCTEST_CHECK(all["none"].is_null());
  DOCTEST_CHECK(all.at<std::vector<Matrix>>("ms") == std::vector<Matrix>{matrix, matrix});
  DOCTEST_CHECK(all.at<std::map<std::string, Matrix>>("mm").at("k") == matrix);
}

DOCTEST_TEST_CASE("a value that is missing has a default, and a wrong one is refused with its key") {
  const Checkpoint checkpoint{{"epoch", 4}, {"w", tensor}, {"half", 0.5}, {"name", "x"}, {"big", 300}};
  DOCTEST_CHECK(checkpoint.value("epoch", -1) == 4);
  DOCTEST_CHECK(checkpoint.value("step", -1) == -1);
  DOCTEST_CHECK(checkpoint.value("name", "none") == "x");
  DOCTEST_CHECK(checkpoint.value("title", "none") == "none");
  DOCTEST_CHECK(checkpoint.value("w", TensorData()) == tensor);
  const auto missing = thrown_by([&] { checkpoint.at<int>("step"); });
  DOCTEST_CHECK(contains(missing, R"(no key "step"; its keys are "epoch", "w")"));
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.at<int>("w"); }),
                         R"(checkpoint["w"] is the tensor float32[2,3], which cannot be read as int)"));
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.at<TensorData>("epoch"); }),
                         R"(checkpoint["epoch"] is the number 4, which cannot be read as a tensor)"));
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.at<std::string>("epoch"); }), "cannot be read as std::string"));
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.value("name", 1); }), R"(is the string "x")"));
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.at<int>("half"); }), "the number 0.5"));
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.at<std::int8_t>("big"); }), "the number 300"));
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.at<unsigned>("w"); }), "unsigned int"));
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.at<bool>("epoch"); }), "cannot be read as bool"));
  DOCTEST_CHECK(contains(thrown_by([&] { Checkpoint()["x"]; }), "it is empty"));
}

DOCTEST_TEST_CASE("braces that are no dictionary are refused with a hint") {
  DOCTEST_CHECK(contains(thrown_by([] { save({{1, 2}}); }), R"(a checkpoint is a dictionary, but the braces hold)"));
  DOCTEST_CHECK(contains(thrown_by([] { save({{"a", 1}, {"a", 2}}); }), R"(the key "a" stands there twice)"));
  DOCTEST_CHECK(contains(thrown_by([] { save({tensor, tensor}); }), "a list of 2 elements"));
  DOCTEST_CHECK(contains(thrown_by([] { save(Json{1, 2}); }), "the list [1,2]"));
}

DOCTEST_TEST_CASE("JSON becomes a checkpoint and back, but not with a tensor inside") {
  const Json json{{"epoch", 4}, {"nested", {{"x", {1, 2}}, {"list", {Json{{"y", 1}}}}}}};
  const Checkpoint checkpoint = json;
  DOCTEST_CHECK(checkpoint.to_json() == json);
  DOCTEST_CHECK(
      checkpoint ==
      Checkpoint{{"epoch", 4}, {"nested", {{"x", {1, 2}}, {"list", CheckpointItem::of_list({Checkpoint{{"y", 1}}})}}}});
  DOCTEST_CHECK(Checkpoint(Json()).empty());
  DOCTEST_CHECK(Checkpoint(troupe::Config(json)) == checkpoint);
  const Checkpoint with_tensor{{"a", {{"w", tensor}}}};
  DOCTEST_CHECK(contains(thrown_by([&] { with_tensor.to_json(); }), "the tensor float32[2,3]"));
  DOCTEST_CHECK(Checkpoint::from_dict({{"epoch", 4}}).to_dict() == Checkpoint{{"epoch", 4}});
}

DOCTEST_TEST_CASE("entries keep their order, and two dictionaries are equal whatever it is") {
  Checkpoint left{{"b", 1}, {"a", 2}};
  std::string keys;
  for (const auto& [key, item] : left) keys += key;
  DOCTEST_CHECK(keys == "ba");
  DOCTEST_CHECK(left == Checkpoint{{"a", 2}, {"b", 1}});
  DOCTEST_CHECK(left != Checkpoint{{"a", 2}, {"b", 2}});
  DOCTEST_CHECK(left != Checkpoint{{"a", 2}});
  DOCTEST_CHECK(Checkpoint{{"w", tensor}} ==
                Checkpoint{{"w", TensorData::copy_of(tensor.dtype(), {2, 3}, tensor.data())}});
  DOCTEST_CHECK(Checkpoint{{"w", tensor}} != Checkpoint{{"w", TensorData::of<float>({1, 2, 3, 4, 5, 6})}});
  DOCTEST_CHECK(Checkpoint{{"w", tensor}} != Checkpoint{{"w", 1}});
}

DOCTEST_TEST_CASE("a copy is not changed with its original") {
  Checkpoint original{{"a", 1}, {"b", 2}};
  const Checkpoint copy = original;
  original.set("a", tensor);
  original.set("c", 3);
  DOCTEST_CHECK(original.erase("b"));
  DOCTEST_CHECK(!original.erase("b"));
  DOCTEST_CHECK(show(original) == R"({"a":float32[2,3],"c":3})");
  DOCTEST_CHECK(show(copy) == R"({"a":1,"b":2})");
}

DOCTEST_TEST_CASE("a large dictionary finds all its keys, also after one is gone") {
  Checkpoint checkpoint;
  constexpr int count = 3000;
  for (int i = 0; i < count; ++i) checkpoint.set("layer." + std::to_string(i), i);
  DOCTEST_CHECK(checkpoint.erase("layer.17"));
  int found = 0;
  for (int i = 0; i < count; ++i) found += checkpoint.value("layer." + std::to_string(i), -1) == i;
  DOCTEST_CHECK(found == count - 1);
  DOCTEST_CHECK(checkpoint.size() == count - 1);
}

DOCTEST_TEST_CASE("a user's type is packed with a version and unpacked as what it was") {
  const Sampler sampler{7, {3, 1, 2}};
  const Checkpoint checkpoint{{"sampler", Checkpoint::pack(sampler, 3)},
                              {"sizes", Checkpoint::pack(std::vector{1, 2})}};
  std::uint32_t version = 0;
  DOCTEST_CHECK(checkpoint.unpack<Sampler>("sampler", version) == sampler);
  DOCTEST_CHECK(version == 3);
  DOCTEST_CHECK(checkpoint.unpack<std::vector<int>>("sizes") == std::vector{1, 2});
  DOCTEST_CHECK(
      contains(thrown_by([&] { checkpoint.unpack<std::string>("sampler"); }), "cannot be unpacked as std::string"));
  DOCTEST_CHECK(contains(thrown_by([&] { checkpoint.at<int>("sampler"); }), "Sampler, which cannot be read as int"));
  const auto renamed = Checkpoint::pack(sampler, 1, "OldSampler");
  DOCTEST_CHECK(contains(thrown_by([&] { renamed.unpack<Sampler>(); }), "OldSampler"));
  DOCTEST_CHECK(renamed.unpack<Sampler>("OldSampler") == sampler);
  DOCTEST_CHECK(contains(show(checkpoint), "Sampler version 3"));
}

DOCTEST_TEST_CASE("the rough size counts tensors, text and entries") {
  DOCTEST_CHECK(Checkpoint().bytes() < 64);
  const auto small = Checkpoint{{"w", tensor}}.bytes();
  const auto large = Checkpoint{{"w", TensorData::of(std::vector<double>(1000))}, {"s", std::string(500, 'x')}}.bytes();
  DOCTEST_CHECK(small >= 24);
  DOCTEST_CHECK(large >= 8500);
  DOCTEST_CHECK(large < 9500);
}
