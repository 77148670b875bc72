// SPDX-License-Identifier: Apache-2.0
#include "actors/cpu_ledger.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <thread>
#include <vector>

using namespace troupe;

namespace {

std::shared_ptr<CpuLedger> ledger_of(double cores) { return std::make_shared<CpuLedger>(cores); }

/// What it would be told now.
int room_of(CpuAccount& account) {
  int seen = -1;
  account.use([&](int room) {
    seen = room;
    return account.workers();
  });
  return seen;
}

}  // namespace

DOCTEST_TEST_CASE("a group begins with what others have left, within its range") {
  const auto ledger = ledger_of(8);
  const auto first = ledger->open({2, 1, 3});
  DOCTEST_CHECK(first->workers() == 3);
  const auto second = ledger->open({1, 1, 100});
  DOCTEST_CHECK(second->workers() == 2);
  // Nobody is refused what it needs.
  const auto third = ledger->open({1, 4, 8});
  DOCTEST_CHECK(third->workers() == 4);
  const auto fixed = ledger->open({4, 5, 5});
  DOCTEST_CHECK(fixed->workers() == 5);
  DOCTEST_CHECK(room_of(*second) == 0);
}

DOCTEST_TEST_CASE("workers without cores of their own always find room") {
  const auto ledger = ledger_of(1);
  const auto full = ledger->open({1, 4, 4});
  DOCTEST_CHECK(ledger->open({0, 1, 7})->workers() == 7);
}

DOCTEST_TEST_CASE("fractions of cores add up, and absurd ones do no harm") {
  const auto ledger = ledger_of(1);
  DOCTEST_CHECK(ledger->open({1.0 / 3, 1, 100})->workers() == 3);
  DOCTEST_CHECK(ledger->open({0.1, 1, 100})->workers() == 10);
  const auto huge = ledger->open({std::numeric_limits<double>::max(), 100, 100});
  DOCTEST_CHECK(ledger->open({1, 1, 100})->workers() == 1);
}

DOCTEST_TEST_CASE("others are told of room that was given back, but not groups of a fixed size") {
  const auto ledger = ledger_of(4);
  auto giver = ledger->open({1, 1, 4});
  auto elastic = ledger->open({1, 1, 4});
  auto fixed = ledger->open({1, 1, 1});
  int told = 0;
  elastic->on_room([&] { told += 1; });
  for (auto* account : {giver.get(), fixed.get()}) account->on_room([] { DOCTEST_FAIL("nothing for this one"); });
  giver->hold(4);
  DOCTEST_CHECK(told == 0);
  giver->hold(2);
  DOCTEST_CHECK(told == 1);
  DOCTEST_CHECK(room_of(*elastic) == 1);
  giver->hold(2);
  DOCTEST_CHECK(told == 1);
  giver.reset();
  DOCTEST_CHECK(told == 2);
  DOCTEST_CHECK(room_of(*elastic) == 3);
}

DOCTEST_TEST_CASE("a closed account holds nothing and may still be asked") {
  const auto ledger = ledger_of(2);
  auto account = ledger->open({1, 2, 2});
  account->close();
  account->close();
  account->hold(2);
  DOCTEST_CHECK(room_of(*account) == 0);
  DOCTEST_CHECK(ledger->open({1, 1, 2})->workers() == 2);
}

DOCTEST_TEST_CASE("groups that hear of the same room do not both take it") {
  const auto ledger = ledger_of(8);
  std::vector<std::unique_ptr<CpuAccount>> accounts;
  for (int i = 0; i < 4; ++i) accounts.push_back(ledger->open({1, 0, 8}));
  for (auto& account : accounts) account->hold(0);
  std::vector<std::thread> threads;
  for (auto& account : accounts)
    threads.emplace_back([&account] {
      for (int i = 0; i < 1000; ++i) {
        account->use([](int room) { return room; });
        account->hold(i % 3);
      }
      account->hold(0);
      account->use([](int room) { return room; });
    });
  for (auto& thread : threads) thread.join();
  int sum = 0;
  for (const auto& account : accounts) sum += account->workers();
  DOCTEST_CHECK(sum == 8);
}
