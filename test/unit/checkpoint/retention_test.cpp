// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "checkpoint/retention.hpp"
#include "test/unit/thrown.hpp"

using troupe::CheckpointStrategy;
using troupe::detail::Retention;
using Ids = std::vector<std::uint64_t>;

DOCTEST_TEST_CASE("retention keeps the two lowest losses of the guide's example") {
  Retention retention({.num_to_keep = 2, .checkpoint_score_attribute = "loss", .checkpoint_score_order = "min"});
  DOCTEST_CHECK(retention.add(1, 2) == Ids{});
  DOCTEST_CHECK(retention.add(2, 4) == Ids{});
  DOCTEST_CHECK(retention.add(3, 1) == Ids{2});
  DOCTEST_CHECK(retention.add(4, 3) == Ids{4});
  DOCTEST_CHECK(retention.kept() == Ids{3, 1});
  DOCTEST_CHECK(retention.best() == 3);
}

DOCTEST_TEST_CASE("retention without a limit keeps all and calls the newest the best") {
  Retention retention(CheckpointStrategy{});
  DOCTEST_CHECK(retention.by_age());
  DOCTEST_CHECK(retention.best() == std::nullopt);
  for (std::uint64_t id = 1; id <= 5; ++id) DOCTEST_CHECK(retention.add(id, 0).empty());
  DOCTEST_CHECK(retention.best() == 5);
  DOCTEST_CHECK(retention.kept() == Ids{5, 4, 3, 2, 1});
}

DOCTEST_TEST_CASE("retention by age with order min keeps the oldest") {
  Retention retention({.num_to_keep = 1, .checkpoint_score_order = "min"});
  DOCTEST_CHECK(retention.add(1, 0) == Ids{});
  DOCTEST_CHECK(retention.add(2, 0) == Ids{2});
  DOCTEST_CHECK(retention.best() == 1);
}

DOCTEST_TEST_CASE("retention of zero drops every checkpoint at once") {
  Retention retention({.num_to_keep = 0});
  DOCTEST_CHECK(retention.add(1, 0) == Ids{1});
  DOCTEST_CHECK(retention.best() == std::nullopt);
}

DOCTEST_TEST_CASE("retention ranks NaN below every number and keeps the older of equals") {
  Retention retention({.num_to_keep = 2, .checkpoint_score_attribute = "accuracy"});
  DOCTEST_CHECK(retention.add(1, std::nan("")) == Ids{});
  DOCTEST_CHECK(retention.add(2, -1e300) == Ids{});
  DOCTEST_CHECK(retention.kept() == Ids{2, 1});
  DOCTEST_CHECK(retention.add(3, std::nan("")) == Ids{3});
  DOCTEST_CHECK(retention.add(4, -1e300) == Ids{1});
  DOCTEST_CHECK(retention.add(5, -1e300) == Ids{5});
  DOCTEST_CHECK(retention.kept() == Ids{2, 4});
}

DOCTEST_TEST_CASE("a bad checkpoint strategy is refused with the valid values") {
  using troupe::test::contains;
  const auto text = [](const CheckpointStrategy& strategy) {
    return troupe::test::thrown_by([&] { troupe::detail::check_strategy(strategy); });
  };
  DOCTEST_CHECK(contains(text({.num_to_keep = -1}), "invalid_option: CheckpointStrategy.num_to_keep = -1"));
  DOCTEST_CHECK(contains(text({.checkpoint_score_order = "best"}), "\"max\", \"min\""));
  DOCTEST_CHECK(contains(text({.checkpoint_score_attribute = ""}), "_timestamp"));
  DOCTEST_CHECK(text({}) == "nothing");
}
