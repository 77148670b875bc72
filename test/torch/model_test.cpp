// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "test/integration/support.hpp"

namespace train = troupe::train;
using namespace troupe::test;
using troupe::Json;

namespace {

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(4, 16), torch::nn::Tanh(), torch::nn::Linear(16, 3));
}

/// Trains on this rank's share of a batch that is the same for every world size; gives all parameters.
std::vector<double> train_share(const troupe::Config& config) {
  torch::manual_seed(train::world_rank());  // ranks begin differently: prepare_model() must make them equal
  auto net = make_net();
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  if (config.value("seed_zero", false)) {
    torch::manual_seed(0);
    at::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.uniform_(-0.5, 0.5);
  }
  net = train::torch::prepare_model(net, {.bucket_bytes = config.value("bucket_bytes", std::size_t{4} << 20)});
  torch::manual_seed(1);
  const auto data = torch::randn({24, 4});
  const auto target = torch::randn({24, 3});
  const auto share = 24 / train::world_size();
  const auto x = data.narrow(0, share * train::world_rank(), share);
  const auto y = target.narrow(0, share * train::world_rank(), share);
  const int pieces = config.value("pieces", 1);
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    for (int piece = 0; piece < pieces; ++piece) {
      const auto from = share / pieces * piece;
      auto loss =
          torch::mse_loss(net->forward(x.narrow(0, from, share / pieces)), y.narrow(0, from, share / pieces)) / pieces;
      if (piece + 1 < pieces) {
        auto guard = train::torch::no_sync(net);
        loss.backward();
      } else {
        loss.backward();
      }
    }
    optimizer.step();
  }
  std::vector<double> values;
  for (const auto& parameter : net->parameters()) {
    const auto flat = parameter.detach().flatten().to(torch::kDouble).contiguous();
    values.insert(values.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return values;
}

std::vector<std::vector<double>> run(troupe::TrainerOptions options, Json config) {
  options.resources_per_worker = {{"CPU", 1}};
  TestTrainer trainer(std::move(options));
  config["seed_zero"] = true;
  std::vector<std::vector<double>> values;
  for (const auto& result : trainer->run(troupe::fn<train_share>, {.config = std::move(config)}))
    values.push_back(result.get<std::vector<double>>());
  return values;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

DOCTEST_TEST_CASE("workers together train as one process with the whole batch, and alike to the bit") {
  const auto alone = run({.backend = "torch", .num_workers = 1}, {{"pieces", 1}});
  for (bool shared_memory : {true, false}) {
    DOCTEST_CAPTURE(shared_memory);
    const troupe::TrainerOptions options{.backend = troupe::TorchConfig{.shared_memory = shared_memory},
                                         .num_workers = 3};
    const auto together = run(options, {{"bucket_bytes", 64}});
    DOCTEST_CHECK(together[0] == together[1]);
    DOCTEST_CHECK(together[0] == together[2]);
    DOCTEST_CHECK(largest_difference(together[0], alone[0]) < 1e-5);
    DOCTEST_CHECK(run(options, {{"bucket_bytes", 64}}) == together);
    DOCTEST_CHECK(largest_difference(run(options, {{"pieces", 2}})[0], alone[0]) < 1e-5);
  }
}

DOCTEST_TEST_CASE("prepare_model gives every rank the parameters and buffers of rank 0, and returns the same model") {
  on_both_placements([](troupe::Placement placement) {
    TestTrainer trainer({.backend = "torch", .num_workers = 2, .placement = placement});
    const auto results = trainer->run([]() -> Json {
      auto norm = std::make_shared<torch::nn::BatchNorm1dImpl>(3);
      {
        at::NoGradGuard no_grad;
        norm->weight.fill_(train::world_rank() + 5);
        norm->running_mean.fill_(train::world_rank() + 7);
      }
      auto same = train::torch::prepare_model(norm);
      return {same == norm, norm->weight.sum().item<double>(), norm->running_mean.sum().item<double>()};
    });
    for (const auto& result : results) DOCTEST_CHECK(result == Json({true, 15.0, 21.0}));
  });
}

DOCTEST_TEST_CASE("models that differ between ranks are refused with both lists") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  const auto error = error_of(
      [&] { trainer->run([] { train::torch::prepare_model(torch::nn::Linear(4, 1 + train::world_rank())); }); });
  DOCTEST_CHECK(error.code == troupe::ErrorCode::invalid_argument);
  DOCTEST_CHECK(error.says("weight float [1, 4]"));
  DOCTEST_CHECK(error.says("weight float [2, 4]"));
}

DOCTEST_TEST_CASE("a parameter without gradient is named inside backward, or counts as zero when that is asked for") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  const auto body = [](const troupe::Config& config) -> Json {
    auto net = make_net();
    net = train::torch::prepare_model(net, {.find_unused_parameters = config["find_unused"].get<bool>()});
    auto linear = net->ptr<torch::nn::LinearImpl>(0);
    // Rank 0 uses the first layer alone, rank 1 both.
    auto out = train::world_rank() == 0 ? linear->forward(torch::ones({1, 4})) : net->forward(torch::ones({1, 4}));
    out.sum().backward();
    const auto second = net->ptr<torch::nn::LinearImpl>(2);
    return {linear->weight.grad().sum().item<double>(), second->weight.grad().sum().item<double>()};
  };
  const auto error = error_of([&] { trainer->run(body, {.config = {{"find_unused", false}}}); });
  DOCTEST_CHECK(error.says("2.weight, 2.bias"));
  DOCTEST_CHECK(error.rank == 0);
  const auto results = trainer->run(body, {.config = {{"find_unused", true}}});
  DOCTEST_CHECK(results[0] == results[1]);
  DOCTEST_CHECK(results[0][1] != 0.0);
}

DOCTEST_TEST_CASE("a model that is not to be averaged begins equal and keeps its own gradients") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  const auto results = trainer->run([]() -> Json {
    torch::manual_seed(train::world_rank());
    auto net = train::torch::prepare_model(torch::nn::Linear(2, 1), {.move_to_device = false, .wrap_ddp = false});
    net->forward(torch::full({1, 2}, 1.0 + train::world_rank())).sum().backward();
    return {net->weight.sum().item<double>(), net->weight.grad().sum().item<double>()};
  });
  DOCTEST_CHECK(results[0][0] == results[1][0]);
  DOCTEST_CHECK(results[0][1] == 2.0);
  DOCTEST_CHECK(results[1][1] == 4.0);
}

DOCTEST_TEST_CASE("a model without workers around it is left alone") {
  TestTrainer trainer({.backend = "torch", .num_workers = 0});
  DOCTEST_CHECK(trainer->run([]() -> Json {
    auto net = train::torch::prepare_model(torch::nn::Linear(2, 1));
    net->forward(torch::ones({1, 2})).sum().backward();
    return net->weight.grad().sum().item<double>();
  })[0] == 2.0);
}
