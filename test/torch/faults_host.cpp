// SPDX-License-Identifier: Apache-2.0
#include "test/torch/faults_host.hpp"

#include <torch/torch.h>
#include <unistd.h>

#include <fmt/format.h>
#include <troupe/torch.hpp>

#include "test/integration/support.hpp"

namespace troupe::test {

int train_for_ever() {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_result = [first = true](const auto&, const auto&) mutable {
    if (std::exchange(first, false)) say(fmt::format("{}", fmt::join(process_tree(::getpid()), " ")));
  };
  trainer->run(
      [] {
        for (auto tensor = ::torch::ones({1000});; train::torch::all_reduce(tensor, train::torch::Reduce::mean))
          train::report({{"x", 1}});
      },
      {.callbacks = {callback}});
  return 1;
}

}  // namespace troupe::test
