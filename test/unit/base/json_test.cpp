// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <troupe/json.hpp>

#include "test/unit/thrown.hpp"

using troupe::Config;
using troupe::Json;
using troupe::test::contains;
using troupe::test::thrown_by;

namespace {

const Config config(Json{{"num_epochs", 3},
                         {"lr", 0.5},
                         {"name", "adam"},
                         {"flag", true},
                         {"model", {{"depth", 4}}},
                         {"layers", {8, 16, 32}}});

}  // namespace

DOCTEST_TEST_CASE("a config reads like a plain dictionary") {
  int epochs = 0;
  for (int e = 0; e < config["num_epochs"]; ++e) ++epochs;
  DOCTEST_CHECK(epochs == 3);
  double lr = config["lr"];
  DOCTEST_CHECK(lr == 0.5);
  std::string name = config["name"];
  DOCTEST_CHECK(name == "adam");
  name.clear();
  name = config["name"];
  DOCTEST_CHECK(name == "adam");
  int depth = config["model"]["depth"];
  DOCTEST_CHECK(depth == 4);
  DOCTEST_CHECK(config.value("lr", 0.1) == 0.5);
  DOCTEST_CHECK(config.value("momentum", 0.9) == 0.9);
  DOCTEST_CHECK(config.contains("lr"));
  bool flag = false;
  if (config["flag"]) flag = true;
  DOCTEST_CHECK(flag);
}

DOCTEST_TEST_CASE("a list in a config can be walked, indexed and copied out") {
  int sum = 0;
  for (auto& x : config["layers"]) sum += x.get<int>();
  for (const auto& x : config["layers"]) sum += x.get<int>();
  for (int x : config["layers"]) sum += x;
  DOCTEST_CHECK(sum == 3 * 56);
  std::vector<int> layers = config["layers"];
  DOCTEST_CHECK(layers == std::vector<int>{8, 16, 32});
  DOCTEST_CHECK(config["layers"][1] == 16);
  DOCTEST_CHECK(config["layers"][std::size_t{2}] == 32);
  DOCTEST_CHECK(config["layers"][long{0}] == 8);
  DOCTEST_CHECK(config["layers"].size() == 3);
}

DOCTEST_TEST_CASE("what a loop over a config hands out is checked as well") {
  const Config nested(Json{{"layers", {{{"width", 8}}, {{"depth", 2}}}}, {"model", {{"inner", {{"lr", 0.5}}}}}});
  const auto widths = thrown_by([&] {
    for (const auto& layer : nested["layers"]) static_cast<void>(layer["width"]);
  });
  DOCTEST_CHECK(contains(widths, R"(config["layers"][1] has no key "width"; its keys are "depth")"));
  const auto rates = thrown_by([&] {
    for (const auto& [key, value] : nested["model"].items()) static_cast<void>(value[key]);
  });
  DOCTEST_CHECK(contains(rates, R"(config["model"]["inner"] has no key "inner"; its keys are "lr")"));
  for (const auto& item : nested["model"].items()) DOCTEST_CHECK(item.key() == "inner");
  DOCTEST_CHECK(nested.begin().key() == "layers");
  DOCTEST_CHECK((nested.find("none") == nested.end()));
  DOCTEST_CHECK((nested.find("model") != nested.end()));
  DOCTEST_CHECK(Config().items().empty());
}

DOCTEST_TEST_CASE("config values compare with numbers and texts") {
  DOCTEST_CHECK((config["num_epochs"] > 2));
  DOCTEST_CHECK((2 < config["num_epochs"]));
  DOCTEST_CHECK((config["num_epochs"] <= 3U));
  DOCTEST_CHECK((config["lr"] >= 0.5));
  DOCTEST_CHECK_FALSE((config["lr"] < 0.5F));
  DOCTEST_CHECK((config["name"] == "adam"));
  DOCTEST_CHECK((config["name"] != std::string("sgd")));
  DOCTEST_CHECK((config["num_epochs"] == 3));
}

DOCTEST_TEST_CASE("a config value keeps its form inside metrics and results") {
  const Json metrics = {{"lr", config["lr"]}, {"model", config["model"]}, {"layers", config["layers"]}};
  DOCTEST_CHECK(metrics.dump() == R"({"lr":0.5,"model":{"depth":4},"layers":[8,16,32]})");
  DOCTEST_CHECK(Json(config).dump() == static_cast<const Json&>(config).dump());
  const Json copied = config["name"];
  DOCTEST_CHECK(copied == "adam");
}

DOCTEST_TEST_CASE("a missing key names the key and those present") {
  const auto text = thrown_by([] { static_cast<void>(config["learning_rate"]); });
  DOCTEST_CHECK(contains(text, "invalid_argument: config has no key \"learning_rate\""));
  DOCTEST_CHECK(contains(text, "\"num_epochs\", \"lr\", \"name\""));
  DOCTEST_CHECK(contains(text, "config.value(\"learning_rate\", default)"));
}

DOCTEST_TEST_CASE("a missing nested key names the way to it") {
  const auto text = thrown_by([] { static_cast<void>(config["model"]["width"]); });
  DOCTEST_CHECK(contains(text, "config[\"model\"] has no key \"width\"; its keys are \"depth\""));
  DOCTEST_CHECK(contains(thrown_by([] { static_cast<void>(Config()["lr"]); }), "it is empty"));
}

DOCTEST_TEST_CASE("a key or index where there can be none is an error that says what is there") {
  DOCTEST_CHECK(contains(thrown_by([] { static_cast<void>(config["lr"]["x"]); }), "config[\"lr\"] is not an object"));
  DOCTEST_CHECK(contains(thrown_by([] { static_cast<void>(config["lr"][0]); }), "config[\"lr\"] is not an array"));
  DOCTEST_CHECK(contains(thrown_by([] { static_cast<void>(config["layers"][3]); }), "has 3 elements"));
  DOCTEST_CHECK(contains(thrown_by([] { static_cast<void>(config["layers"][-1]); }), "none at index -1"));
  DOCTEST_CHECK(contains(thrown_by([] { static_cast<void>(config[0]); }), "config is not an array"));
}

DOCTEST_TEST_CASE("a value of another type is an error, never an abort or an endless loop") {
  DOCTEST_CHECK_THROWS_WITH_AS([[maybe_unused]] double lr = config["name"],
                               "[json.exception.type_error.302] type must be number, but is string", Json::type_error);
  const auto text = thrown_by([] { static_cast<void>(config["name"].get<double>()); });
  DOCTEST_CHECK(contains(text, "invalid_argument: config[\"name\"] is \"adam\""));
  DOCTEST_CHECK(contains(text, "type must be number, but is string"));
  const auto looped = thrown_by([] {
    for (int e = 0; e < config["name"]; ++e)
      if (e > 10) throw troupe::Error(troupe::ErrorCode::internal, "the loop did not end");
  });
  DOCTEST_CHECK(contains(looped, "invalid_argument: config[\"name\"] is \"adam\""));
}

DOCTEST_TEST_CASE("only objects are configs, and null is an empty one") {
  DOCTEST_CHECK(Config(Json()).dump() == "{}");
  DOCTEST_CHECK(Config().dump() == "{}");
  const Json inner = {{"lr", 0.1}};
  const auto text = thrown_by([&] { Config(Json::array({inner})); });
  DOCTEST_CHECK(contains(text, "invalid_argument: config must be a JSON object, but is the array [{\"lr\":0.1}]"));
  DOCTEST_CHECK(contains(text, "write cfg instead of {cfg}, or {{\"key\", value}}"));
  DOCTEST_CHECK(contains(thrown_by([] { Config(Json(3)); }), "the number 3; write {{\"key\", value}}"));
  DOCTEST_CHECK(contains(thrown_by([] { troupe::detail::require_object("x", "metrics"); }), "metrics must be"));
}

DOCTEST_TEST_CASE("a long or broken value is shown short and whole in messages") {
  const auto text = thrown_by([] { Config(Json(std::string(100'000, 'x') + "\xff")); });
  DOCTEST_CHECK(contains(text, "xxx..."));
  DOCTEST_CHECK(text.size() < 300);
  DOCTEST_CHECK(contains(thrown_by([] { Config(Json("\xff")); }), "config must be"));
}

DOCTEST_TEST_CASE("packed values come back with their order, NaN and infinity") {
  const Json value = {{"z", 1}, {"a", {1.5, nullptr, "text"}}, {"big", std::numeric_limits<std::int64_t>::min()}};
  DOCTEST_CHECK(troupe::detail::unpack(troupe::detail::pack(value)).dump() == value.dump());
  const auto odd = troupe::detail::unpack(troupe::detail::pack(Json{std::nan(""), -INFINITY}));
  DOCTEST_CHECK(std::isnan(odd[0].get<double>()));
  DOCTEST_CHECK(odd[1].get<double>() == -INFINITY);
  std::string out = "x";
  troupe::detail::pack_to(out, Json(7));
  DOCTEST_CHECK(out == "x\x07");
}

DOCTEST_TEST_CASE("a discarded value is refused at any depth before it is sent") {
  const Json discarded = Json::parse("{", nullptr, false);
  for (const Json& value : {discarded, Json{{"loss", discarded}}, Json{1, {{"deep", discarded}}}})
    DOCTEST_CHECK(contains(thrown_by([&] { troupe::detail::pack(value); }), "Check is_discarded()"));
}

DOCTEST_TEST_CASE("bytes that are not one value are refused") {
  const auto whole = troupe::detail::pack(Json{{"key", {1, 2, 3}}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    DOCTEST_CAPTURE(size);
    DOCTEST_CHECK(contains(thrown_by([&] { troupe::detail::unpack(whole.substr(0, size)); }), "invalid_argument: "));
  }
  DOCTEST_CHECK(contains(thrown_by([&] { troupe::detail::unpack(whole + "x"); }), "not one MessagePack value"));
  DOCTEST_CHECK(contains(thrown_by([] { troupe::detail::unpack("\xc1"); }), "not one MessagePack value"));
  DOCTEST_CHECK(contains(thrown_by([] { troupe::detail::unpack("\xdd\xff\xff\xff\xff"); }), "invalid_argument: "));
}

DOCTEST_TEST_CASE("nesting that would overflow the stack is refused") {
  const auto nested = [](std::size_t depth) { return std::string(depth, '\x91') + '\x01'; };
  DOCTEST_CHECK(troupe::detail::unpack(nested(512)).is_array());
  DOCTEST_CHECK(contains(thrown_by([&] { troupe::detail::unpack(nested(513)); }), "more than 512 levels"));
  DOCTEST_CHECK(contains(thrown_by([&] { troupe::detail::unpack(nested(1 << 22)); }), "more than 512 levels"));
  std::string wide("\xdc\x04\x00", 3);  // an array of 1024 arrays: depth counts levels, not arrays
  for (int i = 0; i < 1024; ++i) wide += "\x91\x01";
  DOCTEST_CHECK(troupe::detail::unpack(wide).size() == 1024);
}
