// SPDX-License-Identifier: Apache-2.0
// Names begin with "registry_test_": the registry is one for the whole program. "torch" may be linked in or not.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <troupe/backend.hpp>
#include <troupe/error.hpp>

#include "test/unit/thrown.hpp"

using troupe::Json;
using troupe::test::contains;
using troupe::test::thrown_by;

namespace {

struct NamedBackend : troupe::Backend {
  explicit NamedBackend(std::string given) : name(std::move(given)) {}
  void on_start(const troupe::BackendContext& /*context*/) override {}
  std::string name;
};

auto make_named(const Json& options) { return std::make_unique<NamedBackend>(options.value("name", "")); }

bool has_backend(const std::string& name) {
  const auto names = troupe::backend_names();
  return std::count(names.begin(), names.end(), name) == 1;
}

}  // namespace

DOCTEST_TEST_CASE("a registered backend is listed, found and made with its options") {
  DOCTEST_CHECK(troupe::register_backend("registry_test_b", make_named));
  DOCTEST_CHECK(troupe::register_backend("registry_test_a", make_named));
  const auto names = troupe::backend_names();
  DOCTEST_CHECK(std::is_sorted(names.begin(), names.end()));
  DOCTEST_CHECK(has_backend("registry_test_a"));
  DOCTEST_CHECK(has_backend("registry_test_b"));
  troupe::require_backend("registry_test_a");
  const auto made = troupe::make_backend("registry_test_a", {{"name", "x"}});
  DOCTEST_CHECK(dynamic_cast<NamedBackend&>(*made).name == "x");
}

DOCTEST_TEST_CASE("a name is registered once, with a factory that makes something") {
  troupe::register_backend("registry_test_once", make_named);
  DOCTEST_CHECK(contains(thrown_by([] { troupe::register_backend("registry_test_once", make_named); }),
                         "invalid_option: a backend named \"registry_test_once\" is registered already"));
  DOCTEST_CHECK(contains(thrown_by([] { troupe::register_backend("", make_named); }), "invalid_option: "));
  DOCTEST_CHECK(contains(thrown_by([] { troupe::register_backend("registry_test_none", {}); }), "invalid_option: "));
  DOCTEST_CHECK_FALSE(has_backend("registry_test_none"));
  troupe::register_backend("registry_test_null", [](const Json&) { return nullptr; });
  DOCTEST_CHECK(contains(thrown_by([] { troupe::make_backend("registry_test_null", {}); }), "made nothing"));
}

DOCTEST_TEST_CASE("a backend's own check sees the options before anything is made") {
  static bool is_made = false;  // the registry stays
  troupe::register_backend(
      "registry_test_checked",
      [](const Json& options) {
        is_made = true;
        return make_named(options);
      },
      [](const Json& options) {
        if (options.contains("bad")) throw troupe::Error(troupe::ErrorCode::invalid_option, "bad is refused");
      });
  const auto required = [](const Json& options) {
    return thrown_by([&] { troupe::require_backend({"registry_test_checked", options}); });
  };
  DOCTEST_CHECK(required({{"bad", 1}}) == "invalid_option: bad is refused");
  DOCTEST_CHECK(required({{"good", 1}}) == "nothing");
  DOCTEST_CHECK_FALSE(is_made);
}

DOCTEST_TEST_CASE("an unknown backend is refused with the names that are valid") {
  troupe::register_backend("registry_test_known", make_named);
  for (const auto& text :
       {thrown_by([] { troupe::require_backend("troch"); }), thrown_by([] { troupe::make_backend("troch", {}); })}) {
    DOCTEST_CHECK(contains(text, "invalid_option: backend = \"troch\" is unknown; valid: "));
    DOCTEST_CHECK(contains(text, "registry_test_known"));
    DOCTEST_CHECK(contains(text, "register_backend()"));
  }
}

DOCTEST_TEST_CASE("no backend at all is fine") {
  DOCTEST_CHECK(thrown_by([] { troupe::require_backend(""); }) == "nothing");
}

DOCTEST_TEST_CASE("known names that this program does not have come with advice") {
  for (const auto* name : {"tensorflow", "horovod"}) {
    const auto text = thrown_by([&] { troupe::require_backend(name); });
    DOCTEST_CHECK(contains(text, "not for libtorch"));
    DOCTEST_CHECK(contains(text, "register a Backend of your own"));
  }
  const auto text = thrown_by([] { troupe::require_backend("torch"); });
  if (has_backend("torch"))
    DOCTEST_CHECK(text == "nothing");
  else
    DOCTEST_CHECK(contains(text, "link the CMake target troupe::torch"));
}

DOCTEST_TEST_CASE("of threads that register the same name one wins") {
  std::atomic<int> won{0};
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      if (thrown_by([] { troupe::register_backend("registry_test_race", make_named); }) == "nothing") ++won;
      troupe::make_backend("registry_test_race", Json::object());
    });
  for (auto& thread : threads) thread.join();
  DOCTEST_CHECK(won == 1);
}
