// SPDX-License-Identifier: Apache-2.0
// Integration tests on real processes and threads. The program is its own worker, and plays other host programs when a
// test asks for it with `--host=`.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <string_view>

#include <troupe/init.hpp>

#include "test/integration/hosts.hpp"

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  const bool is_passive = std::getenv("TROUPE_TEST_PASSIVE_THREADS") != nullptr;
  if (first != "--host=without_init")
    troupe::init(argc, argv, {.signal_handlers = first != "--host=without_signals", .passive_threads = is_passive});
  if (first.starts_with("--host=")) return troupe::test::play_host(first.substr(7), argc > 2 ? argv[2] : "");
  doctest::Context context(argc, argv);
  return context.run();
}
