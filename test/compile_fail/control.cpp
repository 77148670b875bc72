// SPDX-License-Identifier: Apache-2.0
// COMPILES
// The good forms of what the other files do wrong.
#include <troupe/fn.hpp>
#include <troupe/json.hpp>
#include <troupe/train.hpp>
#include <troupe/worker_group.hpp>

static int no_argument() { return 1; }
static double one_argument(const troupe::Config& config) { return config["lr"]; }
static void nothing() { troupe::train::report({{"loss", 0.5}}); }

void use(const troupe::WorkerHandle& worker) {
  troupe::Fn functions[] = {troupe::fn<no_argument>,
                            troupe::fn<one_argument>,
                            troupe::fn<nothing>,
                            [] { return 2; },
                            [](const auto& config) { return config["epochs"]; },
                            [](const troupe::Config& config) noexcept { return config.size(); }};
  static_cast<void>(functions);
  worker.execute([](int a, const std::string& b) { return b.size() + static_cast<std::size_t>(a); }, 1, "text");
  worker.execute([](int a) noexcept { return a; }, 1);
}
