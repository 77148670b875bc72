// SPDX-License-Identifier: Apache-2.0
// Train functions and their results, on both placements.
#include <stdexcept>
#include <vector>

#include "test/integration/equal_names.hpp"
#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

int rank_of_function() { return train::world_rank(); }
double learning_rate(const Config& config) { return config["lr"]; }
Json by_value(Config config) { return config; }
void nothing() {}
std::vector<int> epochs(const Config& config) {
  std::vector<int> done;
  for (int epoch = 0; epoch < config["num_epochs"]; ++epoch) done.push_back(epoch);
  return done;
}

std::string overloaded() { return "no argument"; }
std::string overloaded(const Config&) { return "one argument"; }

struct Point {
  int x = 0;
  int y = 0;
};
void to_json(Json& json, const Point& point) { json = {{"x", point.x}, {"y", point.y}}; }
Point point() { return {3, 4}; }

Json failing(const Config& config) {
  if (config["rank"] == train::world_rank()) throw std::runtime_error("no such file: data.bin");
  return 1;
}

struct NoException {};

}  // namespace

DOCTEST_TEST_CASE("results come in rank order") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 4, .placement = placement});
    DOCTEST_CHECK(Json(trainer->run(fn<rank_of_function>)).dump() == "[0,1,2,3]");
    const auto lists = trainer->run(fn<epochs>, {.config = {{"num_epochs", 3}}});
    DOCTEST_CHECK(Json(lists).dump() == "[[0,1,2],[0,1,2],[0,1,2],[0,1,2]]");
  });
}

DOCTEST_TEST_CASE("functions take nothing or a config and return anything that is JSON") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    const Json config = {{"lr", 0.5}, {"deep", {{"list", {1, 2}}}}};
    DOCTEST_CHECK(trainer->run(fn<learning_rate>, {.config = config}).at(0) == 0.5);
    DOCTEST_CHECK(trainer->run(fn<by_value>, {.config = config}).at(0).dump() == config.dump());
    DOCTEST_CHECK(trainer->run(fn<point>).at(0).dump() == R"({"x":3,"y":4})");
    DOCTEST_CHECK(trainer->run(fn<rank_of_function>, {.config = config}).at(0) == 0);  // the config is not asked for
  });
}

DOCTEST_TEST_CASE("a void function gives null") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto results = trainer->run(fn<nothing>);
    DOCTEST_CHECK(Json(results).dump() == "[null,null]");
  });
}

DOCTEST_TEST_CASE("lambdas without captures are functions too and two in one function differ") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto first = trainer->run([] { return "first"; });
    const auto second = trainer->run([] { return "second"; });
    const auto with_config =
        trainer->run([](const Config& config) { return config["x"].get<int>() + 1; }, {.config = {{"x", 41}}});
    DOCTEST_CHECK(Json(first).dump() == R"(["first","first"])");
    DOCTEST_CHECK(Json(second).dump() == R"(["second","second"])");
    DOCTEST_CHECK(Json(with_config).dump() == "[42,42]");
  });
}

DOCTEST_TEST_CASE("an overload is chosen with a static_cast") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    DOCTEST_CHECK(trainer->run(fn<static_cast<std::string (*)()>(overloaded)>).at(0) == "no argument");
    DOCTEST_CHECK(trainer->run(fn<static_cast<std::string (*)(const Config&)>(overloaded)>).at(0) == "one argument");
  });
}

DOCTEST_TEST_CASE("functions of equal name in two files are two functions") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    DOCTEST_CHECK(trainer->run(function_of_first_file()).at(1) == "first file");
    DOCTEST_CHECK(trainer->run(function_of_second_file()).at(1) == "second file");
  });
}

DOCTEST_TEST_CASE("without a config the function gets an empty object") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    DOCTEST_CHECK(trainer->run(fn<by_value>).at(0).dump() == "{}");
    DOCTEST_CHECK(trainer->run(fn<by_value>, {.config = nullptr}).at(0).dump() == "{}");
  });
}

DOCTEST_TEST_CASE("a config that is no object is refused with a hint about braces") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    const auto array = error_of([&] { trainer->run(fn<by_value>, {.config = Json::array({1, 2})}); });
    DOCTEST_CHECK(array.code == ErrorCode::invalid_argument);
    DOCTEST_CHECK(array.says("braces"));
    const auto number = error_of([&] { trainer->run(fn<by_value>, {.config = 3}); });
    DOCTEST_CHECK(number.says("config must be a JSON object"));
    DOCTEST_CHECK(trainer->run(fn<by_value>).size() == 1);  // the trainer is as good as before
  });
}

DOCTEST_TEST_CASE("a missing key is an error that names the key and those present and the rank") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto error = error_of([&] {
      trainer->run(
          [](const Config& config) {
            // Only one rank reads it: which one fails first is certain.
            return train::world_rank() == 1 ? config["momentum"].get<double>() : 0;
          },
          {.config = {{"lr", 0.1}, {"num_epochs", 3}}});
    });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_argument);
    DOCTEST_CHECK(error.rank == 1);
    for (const auto* part : {"rank 1", "\"momentum\"", "\"lr\"", "\"num_epochs\""}) DOCTEST_CHECK(error.says(part));
  });
}

DOCTEST_TEST_CASE("an exception keeps its text and rank") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 3, .placement = placement});
    for (int rank = 0; rank < 3; ++rank) {
      const auto error = error_of([&] { trainer->run(fn<failing>, {.config = {{"rank", rank}}}); });
      DOCTEST_CHECK(error.training_failed);
      DOCTEST_CHECK(error.code == ErrorCode::user_code);
      DOCTEST_CHECK(error.rank == rank);
      DOCTEST_CHECK(error.says("no such file: data.bin"));
      DOCTEST_CHECK(error.says("rank " + std::to_string(rank)));
    }
    DOCTEST_CHECK(trainer->run(fn<failing>, {.config = {{"rank", -1}}}).size() == 3);
  });
}

DOCTEST_TEST_CASE("anything may be thrown") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    const auto strange = error_of([&] { trainer->run([] { throw NoException{}; }); });
    DOCTEST_CHECK(strange.code == ErrorCode::user_code);
    DOCTEST_CHECK(strange.says("not a std::exception"));
    const auto huge = error_of([&] { trainer->run([] { throw std::runtime_error(std::string(18 << 20, 'x')); }); });
    DOCTEST_CHECK(huge.code == ErrorCode::user_code);
    DOCTEST_CHECK(huge.says("xxxx"));
    const auto binary = error_of([&] { trainer->run([] { throw std::runtime_error("bad \xff byte"); }); });
    DOCTEST_CHECK(binary.says("bad \xff byte"));
    DOCTEST_CHECK(trainer->run(fn<nothing>).size() == 2);
  });
}

DOCTEST_TEST_CASE("a value nested too deep is the error of its rank") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    constexpr auto nested = [] {
      Json value = 1;
      for (int level = 0; level < 1000; ++level) value = Json::array({value});
      return value;
    };
    const auto result = error_of([&] { trainer->run([] { return decltype(nested){}(); }); });
    DOCTEST_CHECK(result.code == ErrorCode::invalid_argument);
    DOCTEST_CHECK(result.rank == 0);
    const auto report = error_of([&] { trainer->run([] { train::report({{"x", decltype(nested){}()}}); }); });
    DOCTEST_CHECK(report.code == ErrorCode::invalid_argument);
    const auto config = error_of([&] { trainer->run(fn<by_value>, {.config = {{"x", nested()}}}); });
    DOCTEST_CHECK(config.code == ErrorCode::invalid_argument);
    DOCTEST_CHECK(trainer->run(fn<nothing>).size() == 1);
  });
}

DOCTEST_TEST_CASE("run without a function is refused") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    const auto error = error_of([&] { trainer->run({}); });
    DOCTEST_CHECK(error.code == ErrorCode::invalid_argument);
    DOCTEST_CHECK(error.says("troupe::fn<train_func>"));
  });
}

DOCTEST_TEST_CASE("ranks are what the function sees under all names") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 3, .placement = placement});
    const auto results = trainer->run([] {
      namespace session = train::session;
      const bool equal = session::get_world_rank() == train::world_rank() && sgd::world_rank() == train::world_rank() &&
                         session::get_world_size() == train::world_size() &&
                         session::get_local_rank() == train::local_rank() &&
                         session::get_node_rank() == train::node_rank() &&
                         session::get_local_world_size() == train::local_world_size();
      session::report({{"equal", equal}});
      return Json{train::world_rank(),       train::local_rank(), train::node_rank(),   train::world_size(),
                  train::local_world_size(), train::in_worker(),  train::should_stop(), equal};
    });
    DOCTEST_CHECK(Json(results).dump() ==
                  "[[0,0,0,3,3,true,false,true],[1,1,0,3,3,true,false,true],"
                  "[2,2,0,3,3,true,false,true]]");
  });
}

DOCTEST_TEST_CASE("outside a worker the train functions say so") {
  DOCTEST_CHECK(!train::in_worker());
  const std::vector<std::pair<std::string, void (*)()>> calls = {
      {"train::report()", [] { train::report({{"x", 1}}); }},
      {"train::world_rank()", [] { static_cast<void>(train::world_rank()); }},
      {"train::local_rank()", [] { static_cast<void>(train::local_rank()); }},
      {"train::node_rank()", [] { static_cast<void>(train::node_rank()); }},
      {"train::world_size()", [] { static_cast<void>(train::world_size()); }},
      {"train::local_world_size()", [] { static_cast<void>(train::local_world_size()); }},
      {"train::should_stop()", [] { static_cast<void>(train::should_stop()); }},
      {"train::context()", [] { static_cast<void>(train::context()); }},
  };
  for (const auto& [name, call] : calls) {
    const auto error = error_of(call);
    DOCTEST_CHECK(error.code == ErrorCode::not_in_worker);
    DOCTEST_CHECK_MESSAGE(error.says(name), error.text);
  }
}

}  // namespace troupe::test
