// SPDX-License-Identifier: Apache-2.0
// Values of up to 16 MiB arrive intact wherever they travel; larger ones are refused by the call itself.
#include <numeric>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

/// Text that shows a lost, doubled or swapped part.
std::string long_text(std::size_t size) {
  std::string text(size, '\0');
  std::uint32_t state = 12345;
  for (auto& one : text) {
    state = state * 1664525U + 1013904223U;
    one = static_cast<char>('a' + (state >> 24) % 26);
  }
  return text;
}

struct Holder {
  explicit Holder(std::string given) : text(std::move(given)) {}
  std::string text;
};

constexpr std::size_t mb = std::size_t{1} << 20;

}  // namespace

DOCTEST_TEST_CASE("values of 1 and 10 MB arrive intact") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start<Holder>(long_text(10 * mb));
    for (std::size_t size : {1 * mb, 10 * mb}) {
      DOCTEST_CAPTURE(size);
      const auto text = long_text(size);
      auto recorder = std::make_shared<Recorder>();
      const auto results = trainer->run(
          [](const Config& config) {
            const auto given = config["text"].get<std::string>();
            for (int i = 0; i < 2; ++i) train::report({{"text", given}, {"i", i}});
            return given;
          },
          {.config = {{"text", text}}, .callbacks = {recorder}});
      DOCTEST_REQUIRE(results.size() == 2);
      DOCTEST_CHECK((results[1] == text));
      DOCTEST_REQUIRE(recorder->rounds.size() == 2);
      DOCTEST_CHECK((recorder->rounds[1].at(1)["text"] == text));
      DOCTEST_CHECK((trainer->execute([](const std::string& given) { return given + "!"; }, text).at(1) == text + "!"));
    }
    DOCTEST_CHECK(trainer->execute([](Holder& holder) { return holder.text == long_text(10 * mb); }).at(1));
  });
}

DOCTEST_TEST_CASE("many large calls and reports at once do not mix") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start();
    std::vector<std::future<std::size_t>> sizes;
    for (std::size_t i = 0; i < 20; ++i)
      sizes.push_back(trainer->workers()[static_cast<int>(i % 2)].submit(
          [](const std::string& text, std::size_t size) { return text == long_text(size) ? size : 0; },
          long_text(300'000 + i), 300'000 + i));
    for (std::size_t i = 0; i < 20; ++i) DOCTEST_CHECK(sizes[i].get() == 300'000 + i);
  });
}

DOCTEST_TEST_CASE("values of 17 MB are refused as too large") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 2, .placement = placement});
    trainer->start();
    const auto too_large = [](const Thrown& error) { return error.code == ErrorCode::too_large; };
    DOCTEST_CHECK(too_large(
        error_of([&] { trainer->run([](const Config&) {}, {.config = {{"text", std::string(17 * mb, 'x')}}}); })));
    const auto result =
        error_of([&] { trainer->run([] { return train::world_rank() == 1 ? std::string(17 * mb, 'x') : ""; }); });
    DOCTEST_CHECK(too_large(result));
    DOCTEST_CHECK(result.rank == 1);
    const auto report = error_of([&] { trainer->run([] { train::report({{"text", std::string(17 * mb, 'x')}}); }); });
    DOCTEST_CHECK(too_large(report));
    DOCTEST_CHECK(report.rank.has_value());
    DOCTEST_CHECK(too_large(error_of([&] {
      trainer->execute_single([](const std::string& text) { return text.size(); }, std::string(17 * mb, 'x'));
    })));
    const auto answer = error_of([&] { trainer->execute_single([] { return std::string(17 * mb, 'x'); }); });
    DOCTEST_CHECK(too_large(answer));
    DOCTEST_CHECK(answer.rank == 0);
    DOCTEST_CHECK(trainer->run([] { return 1; }).size() == 2);
  });
}

DOCTEST_TEST_CASE("an object with arguments of 17 MB is refused as too large") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.num_workers = 1, .placement = placement});
    const auto error = error_of([&] { trainer->start<Holder>(std::string(17 * mb, 'x')); });
    DOCTEST_CHECK(error.code == ErrorCode::too_large);
    DOCTEST_CHECK(!trainer->started());
  });
}

}  // namespace troupe::test
