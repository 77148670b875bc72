// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/store_table.hpp"

#include <doctest/doctest.h>

using namespace troupe::engine;
using namespace std::chrono_literals;

namespace {

StoreRequest request(StoreOperation operation, std::vector<std::string> keys, std::string value = {},
                     std::int64_t amount = 0) {
  static std::uint64_t id = 0;
  return {1, ++id, operation, std::move(keys), std::move(value), amount, 5s};
}

}  // namespace

DOCTEST_TEST_CASE("a value that was set is there for everybody") {
  StoreTable table;
  DOCTEST_CHECK(table.handle(request(StoreOperation::set, {"a"}, "1"), Time{}).size() == 1);
  const auto answers = table.handle(request(StoreOperation::get, {"a"}), Time{});
  DOCTEST_REQUIRE(answers.size() == 1);
  DOCTEST_CHECK(answers[0].value == "1");
  DOCTEST_CHECK(table.handle(request(StoreOperation::check, {"a", "b"}), Time{})[0].number == 0);
  DOCTEST_CHECK(table.handle(request(StoreOperation::count, {}), Time{})[0].number == 1);
  DOCTEST_CHECK(table.handle(request(StoreOperation::erase, {"a"}), Time{})[0].number == 1);
  DOCTEST_CHECK(table.handle(request(StoreOperation::check, {"a"}), Time{})[0].number == 0);
}

DOCTEST_TEST_CASE("a get before the set is answered by it") {
  StoreTable table;
  const auto get = request(StoreOperation::get, {"a"});
  DOCTEST_CHECK(table.handle(get, Time{}).empty());
  const auto answers = table.handle(request(StoreOperation::set, {"a"}, "late"), Time{});
  DOCTEST_REQUIRE(answers.size() == 2);
  DOCTEST_CHECK(answers[0].id == get.id);
  DOCTEST_CHECK(answers[0].value == "late");
}

DOCTEST_TEST_CASE("a wait for several keys is answered by the last") {
  StoreTable table;
  table.handle(request(StoreOperation::wait, {"a", "b"}), Time{});
  DOCTEST_CHECK(table.handle(request(StoreOperation::set, {"b"}), Time{}).size() == 1);
  DOCTEST_CHECK(table.handle(request(StoreOperation::add, {"a"}, {}, 1), Time{}).size() == 2);
}

DOCTEST_TEST_CASE("a wait that takes too long fails and names the missing keys") {
  StoreTable table;
  table.handle(request(StoreOperation::set, {"rank_0"}), Time{});
  table.handle(request(StoreOperation::wait, {"rank_0", "rank_1", "rank_2"}), Time{});
  DOCTEST_REQUIRE(table.deadline());
  DOCTEST_CHECK(table.tick(*table.deadline() - 1ms).empty());
  const auto answers = table.tick(*table.deadline());
  DOCTEST_REQUIRE(answers.size() == 1);
  DOCTEST_CHECK(answers[0].failed);
  DOCTEST_CHECK(answers[0].value == "rank_1, rank_2");
  DOCTEST_CHECK_FALSE(table.deadline());
}

DOCTEST_TEST_CASE("numbers add up from nothing") {
  StoreTable table;
  DOCTEST_CHECK(table.handle(request(StoreOperation::add, {"n"}, {}, 3), Time{})[0].number == 3);
  DOCTEST_CHECK(table.handle(request(StoreOperation::add, {"n"}, {}, -5), Time{})[0].number == -2);
  DOCTEST_CHECK(table.handle(request(StoreOperation::get, {"n"}), Time{})[0].value == "-2");
}

DOCTEST_TEST_CASE("nobody waits for a client that is gone, and a request without a key is refused") {
  StoreTable table;
  table.handle(request(StoreOperation::get, {"a"}), Time{});
  table.forget(1);
  DOCTEST_CHECK_FALSE(table.deadline());
  DOCTEST_CHECK(table.handle(request(StoreOperation::get, {}), Time{})[0].failed);
}
