// SPDX-License-Identifier: Apache-2.0
#include "test/integration/steady_training.hpp"

#include <chrono>
#include <vector>

namespace troupe::test {
namespace {

std::uint64_t after(std::uint64_t value, int round, int rank) {
  return value * 6364136223846793005U + static_cast<std::uint64_t>(round * 7 + rank);
}

}  // namespace

std::uint64_t train_steadily(const Config& config) {
  int round = 0;
  std::uint64_t value = 1;
  if (auto checkpoint = train::load_checkpoint()) {
    round = checkpoint->at<int>("round");
    value = checkpoint->at<std::uint64_t>("value");
  }
  const std::vector<float> weights(static_cast<std::size_t>(config["floats"].get<int>()), 1.5F);
  while (round < steady_rounds) {
    train::wait_for_stop(std::chrono::milliseconds(2));  // the work
    value = after(value, ++round, train::world_rank());
    train::report({{"round", round}});
    if (round % 5 == 0)
      train::save_checkpoint({{"round", round}, {"value", value}, {"weights", TensorData::of(weights)}},
                             {.sharded = true});
    if (round % 10 == 0) train::flush_checkpoints();
  }
  return value;
}

std::uint64_t steady_result(int rank) {
  std::uint64_t value = 1;
  for (int round = 1; round <= steady_rounds; ++round) value = after(value, round, rank);
  return value;
}

}  // namespace troupe::test
