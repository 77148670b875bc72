// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "test/integration/support.hpp"

namespace train = troupe::train;
using namespace troupe::test;
using troupe::Json;

namespace {

/// All that is random at once: initial weights, dropout, the order of samples.
Json train_randomly(const troupe::Config& config) {
  train::torch::enable_reproducibility(config["seed"].get<std::uint64_t>(), {.threads = config["threads"]});
  const auto first_number = torch::rand({}).item<double>();
  torch::nn::Sequential net(torch::nn::Linear(6, 24), torch::nn::Dropout(0.5), torch::nn::Linear(24, 1));
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  net = train::torch::prepare_model(net);
  const auto x = torch::linspace(-1, 1, 60 * 6).view({60, 6});
  auto loader =
      train::torch::prepare_data_loader({x, x.sum(1, true)}, {.batch_size = 4, .shuffle = true, .workers = 2});
  for (int epoch = 0; epoch < 3; ++epoch)
    for (auto& [inputs, targets] : loader) {
      optimizer.zero_grad();
      torch::mse_loss(net->forward(inputs), targets).backward();
      optimizer.step();
    }
  std::vector<double> weights;
  for (const auto& parameter : net->parameters()) weights.push_back(parameter.sum().item<double>());
  return {{"weights", weights}, {"number", first_number}, {"threads", at::get_num_threads()}};
}

}  // namespace

DOCTEST_TEST_CASE("two runs with equal seeds give equal bits, in new processes and in the same, others do not") {
  const auto run = [](TestTrainer& trainer, int seed) {
    return trainer->run(troupe::fn<train_randomly>, {.config = {{"seed", seed}, {"threads", 1}}});
  };
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  const auto first = run(trainer, 5);
  DOCTEST_CHECK(first[0]["weights"] == first[1]["weights"]);
  DOCTEST_CHECK(first[0]["number"] != first[1]["number"]);  // each rank drops out units of its own
  DOCTEST_CHECK(first[0]["threads"] == 1);
  DOCTEST_CHECK(run(trainer, 5) == first);
  DOCTEST_CHECK(run(trainer, 6)[0]["weights"] != first[0]["weights"]);
  TestTrainer other({.backend = "torch", .num_workers = 2});
  DOCTEST_CHECK(run(other, 5) == first);
}

DOCTEST_TEST_CASE("with the number of threads as it is two runs give equal bits, too") {
  const auto run = [] {
    TestTrainer trainer({.backend = "torch", .num_workers = 2, .resources_per_worker = {{"CPU", 3}}});
    return trainer->run(troupe::fn<train_randomly>, {.config = {{"seed", 5}, {"threads", 0}}});
  };
  const EnvironmentGuard unset("OMP_NUM_THREADS", nullptr);
  const auto first = run();
  DOCTEST_CHECK(first[0]["threads"] == 3);
  DOCTEST_CHECK(run() == first);
}

DOCTEST_TEST_CASE("an operation that is not deterministic throws once equal bits are asked for") {
  TestTrainer trainer({.backend = "torch", .num_workers = 1});
  const auto error = error_of([&] {
    trainer->run([] {
      train::torch::enable_reproducibility();
      torch::zeros({4}).put_(torch::tensor({0, 0}), torch::tensor({1.0F, 2.0F}));
    });
  });
  DOCTEST_CHECK_MESSAGE(error.says("does not have a deterministic implementation"), error.text);
}

DOCTEST_TEST_CASE("reproducibility is refused where ranks share a generator, and with impossible thread counts") {
  TestTrainer threads({.backend = "torch", .num_workers = 2, .placement = troupe::Placement::thread});
  const auto error = error_of([&] { threads->run([] { train::torch::enable_reproducibility(); }); });
  DOCTEST_CHECK(error.code == troupe::ErrorCode::invalid_state);
  DOCTEST_CHECK(error.says("process placement"));
  TestTrainer process({.backend = "torch", .num_workers = 1});
  DOCTEST_CHECK(error_of([&] {
                  process->run([] { train::torch::enable_reproducibility(0, {.threads = -1}); });
                }).says("threads = -1"));
}
