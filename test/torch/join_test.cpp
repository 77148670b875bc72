// SPDX-License-Identifier: Apache-2.0
// train::torch::join(): unequal numbers of batches.
#include <limits>
#include <string>
#include <vector>

#include "test/support/skip.hpp"
#include "test/torch/model_support.hpp"
#include "test/torch/transports.hpp"

namespace train = troupe::train;
namespace nn = torch::nn;
using namespace troupe::test;
using troupe::Config;
using troupe::Json;

namespace {

/// Rank r has batches_of_rank[r] batches; batch b of rank r is the same in the reference below.
const std::vector<int> batches_of_rank = {2, 5, 1};
at::Tensor batch_of(int rank, int batch) { return waves({3, 4}, 10 * rank + batch); }

Json train_joined(const Config& config) {
  auto net = small_net();
  torch::optim::Adam optimizer(net->parameters(), 0.05);
  net = train::torch::prepare_model(net, {.bucket_bytes = 128});
  const bool everywhere = config["by_world_size"];
  const int pieces = config["pieces"];  // of a batch; the gradients of all but the last one wait for its backward()
  for (int epoch = 0; epoch < 2; ++epoch)
    train::torch::join(net,
                       [&] {
                         for (int batch = 0; batch < batches_of_rank[static_cast<std::size_t>(train::world_rank())];
                              ++batch) {
                           optimizer.zero_grad();
                           const auto cut = batch_of(train::world_rank(), batch).chunk(pieces);
                           const auto backward = [&](const at::Tensor& piece) {
                             (net->forward(piece).square().mean() / pieces).backward();
                           };
                           for (std::size_t i = 0; i + 1 < cut.size(); ++i) {
                             auto guard = train::torch::no_sync(net);
                             backward(cut[i]);
                           }
                           backward(cut.back());
                           optimizer.step();
                         }
                       },
                       {.divide_by_initial_world_size = everywhere, .step = [&] { optimizer.step(); }});
  // Afterwards all is as before.
  optimizer.zero_grad();
  net->forward(batch_of(train::world_rank(), 9)).square().mean().backward();
  optimizer.step();
  return parameters_of(*net);
}

/// As train_joined, with a scaler whose scale changes while one rank has no data: rank 0 has one batch and rank 1
/// three, of which the second overflows.
Json train_joined_in_half(const Config&) {
  auto net = small_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto [model, optimizer] = train::torch::accelerate(
      net, sgd, {.amp = true, .dtype = at::kHalf, .scaler = {.init_scale = 8, .growth_interval = 2}});
  const auto step = [&](int batch, double factor) {
    optimizer.zero_grad();
    const auto outputs = model->forward(batch_of(train::world_rank(), batch)).to(torch::kFloat);
    train::torch::backward(outputs.square().mean() * factor);
    optimizer.step();
  };
  Json seen = Json::array();
  for (int epoch = 0; epoch < 2; ++epoch) {
    train::torch::join(model,
                       [&] {
                         for (int batch = 0; batch < 1 + 2 * train::world_rank(); ++batch)
                           step(batch, batch == 1 ? std::numeric_limits<double>::infinity() : 1);
                       },
                       {.step = [&] { optimizer.step(); }});
    step(9, 1);
    seen.push_back({train::torch::grad_scaler().state(), parameters_of(*model)});
  }
  return seen;
}

/// One process that adds up the losses of the ranks that still have a batch.
Values train_joined_alone(bool by_world_size) {
  auto net = small_net();
  torch::optim::Adam optimizer(net->parameters(), 0.05);
  const auto step = [&](const std::vector<at::Tensor>& batches, double divisor) {
    optimizer.zero_grad();
    auto loss = torch::zeros({});
    for (const auto& batch : batches) loss = loss + net->forward(batch).square().mean() / divisor;
    loss.backward();
    optimizer.step();
  };
  for (int epoch = 0; epoch < 2; ++epoch)
    for (int batch = 0; batch < 5; ++batch) {
      std::vector<at::Tensor> batches;
      for (int rank = 0; rank < 3; ++rank)
        if (batch < batches_of_rank[static_cast<std::size_t>(rank)]) batches.push_back(batch_of(rank, batch));
      step(batches, by_world_size ? 3.0 : static_cast<double>(batches.size()));
    }
  step({batch_of(0, 9), batch_of(1, 9), batch_of(2, 9)}, 3.0);
  return parameters_of(*net);
}

void check_joined(const Transport& transport, bool by_world_size, int pieces) {
  const std::string name = transport.name;
  DOCTEST_CAPTURE(name);
  DOCTEST_CAPTURE(by_world_size);
  const auto results =
      run_on(3, transport.config, troupe::fn<train_joined>, {{"by_world_size", by_world_size}, {"pieces", pieces}});
  DOCTEST_CHECK(results[0] == results[1]);
  DOCTEST_CHECK(results[0] == results[2]);
  DOCTEST_CHECK(largest_difference(results[0].get<Values>(), train_joined_alone(by_world_size)) < 1e-5);
}

}  // namespace

DOCTEST_TEST_CASE("ranks that run out of data take part with zeros, and all end with the same parameters") {
  for (const auto& transport : transports())
    for (bool by_world_size : {true, false}) check_joined(transport, by_world_size, 1);
}

DOCTEST_TEST_CASE("unequal numbers of batches whose gradients accumulate under no_sync train as in one process") {
  for (bool by_world_size : {true, false}) check_joined(transports().front(), by_world_size, 3);
}

DOCTEST_TEST_CASE("a rank without data adapts the scale of half precision as the others do") {
  if (TORCH_VERSION_MAJOR < 2) return skip("half precision on CPUs needs libtorch 2");
  const auto results = run_on(2, true, troupe::fn<train_joined_in_half>, {});
  // An epoch: a good step, an infinite one, a good one, and one more behind join().
  DOCTEST_CHECK(results[0][0][0]["scale"] == 8.0);
  DOCTEST_CHECK(results[0] == results[1]);
}

DOCTEST_TEST_CASE("join in half precision is refused without a step, which looks for overflows on all workers") {
  if (TORCH_VERSION_MAJOR < 2) return skip("half precision on CPUs needs libtorch 2");
  const auto error = error_of([] {
    run_on(2, true, [] {
      auto net = small_net();
      torch::optim::SGD sgd(net->parameters(), 0.05);
      auto [model, optimizer] = train::torch::accelerate(net, sgd, {.amp = true, .dtype = at::kHalf});
      train::torch::join(model, [] {});
    });
  });
  DOCTEST_CAPTURE(error.text);
  DOCTEST_CHECK(error.code == troupe::ErrorCode::invalid_option);
  DOCTEST_CHECK(error.says("needs JoinOptions.step = [&] { optimizer.step(); }"));
}

DOCTEST_TEST_CASE("join without a step of its own brings parameters and buffers of the last active rank to all") {
  const auto results = run_on(3, true, []() -> Json {
    nn::Sequential model(nn::Linear(3, 2), nn::BatchNorm1d(2));
    fill(*model);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    model = train::torch::prepare_model(model);
    int steps = 0;
    train::torch::join(model, [&] {
      for (; steps < 1 + 2 * train::world_rank(); ++steps) {
        optimizer.zero_grad();
        model->forward(waves({4, 3}, train::world_rank() + steps)).square().sum().backward();
        optimizer.step();
      }
    });
    return {parameters_of(*model), values_of(model[1]->as<nn::BatchNorm1d>()->running_mean),
            values_of(model[1]->as<nn::BatchNorm1d>()->num_batches_tracked)};
  });
  DOCTEST_CHECK(results[0] == results[1]);
  DOCTEST_CHECK(results[0] == results[2]);
  DOCTEST_CHECK(results[0][2] == Json({5.0}));
}
