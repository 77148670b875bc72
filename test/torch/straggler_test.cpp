// SPDX-License-Identifier: Apache-2.0
// Ranks in step with each other: all rounds take equally long, and only the waiting shows who is slow.
#include <ATen/Functions.h>

#include <chrono>
#include <thread>

#include <troupe/torch_collectives.hpp>
#include <troupe/troupe.hpp>

#include "test/integration/support.hpp"

using namespace std::chrono_literals;
namespace train = troupe::train;
using namespace troupe::test;

DOCTEST_TEST_CASE("of ranks in step with each other the slow one is found, not those who wait for it") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2, .ping_interval = 50ms, .replace_stragglers = true});
  std::vector<troupe::Json> results;
  std::string log;
  {
    CapturedOutput captured(2);
    results = trainer->run(
        [](const troupe::Config& config) {
          const auto name = "began_" + std::to_string(train::world_rank());
          auto tensor = at::ones({16});
          for (const bool first_attempt = is_first(config["folder"].get<std::string>(), name); first_attempt;) {
            std::this_thread::sleep_for(train::world_rank() == 1 ? 100ms : 2ms);
            train::torch::all_reduce(tensor);
            train::report({{"x", 1}});
          }
          return train::world_rank();
        },
        {.config = {{"folder", trainer.folder()}}});
    log = captured.text();
  }
  DOCTEST_CHECK(troupe::Json(results).dump() == "[0,1]");
  DOCTEST_CHECK_MESSAGE(log.find("rank 1 is slow: it computes") != std::string::npos, log);
  DOCTEST_CHECK(log.find("rank 0 is slow") == std::string::npos);
}
