// SPDX-License-Identifier: Apache-2.0
// What prepare_model() does beyond plain averages: buffers, sparse gradients, clipping, hooks, unequal numbers of
// batches.
#include "test/torch/model_support.hpp"

namespace train = troupe::train;
namespace nn = torch::nn;
using namespace troupe::test;
using troupe::Config;
using troupe::Json;

namespace {

/// One step of a BatchNorm whose input depends on the rank; what the buffers are then.
Json buffers_after_a_step(const Config& config) {
  nn::Sequential model(nn::Linear(3, 2), nn::BatchNorm1d(2));
  fill(*model);
  model = train::torch::prepare_model(model, {.broadcast_buffers = config["on"].get<bool>()});
  auto output = model->forward(waves({4, 3}, train::world_rank()));
  if (config.value("twice", false)) output.square().sum().backward({}, /*retain_graph=*/true);
  output.square().sum().backward();
  Json result;
  for (const auto& item : model->named_buffers()) result[item.key()] = values_of(item.value());
  return result;
}

/// An embedding of 6 rows of which every rank uses others, beside a dense layer.
struct TwoPartsImpl : nn::Module {
  TwoPartsImpl() {
    embedding = register_module("embedding", nn::Embedding(nn::EmbeddingOptions(6, 2).sparse(true)));
    dense = register_module("dense", nn::Linear(2, 1));
  }
  at::Tensor forward(const at::Tensor& rows) { return dense->forward(embedding->forward(rows)); }
  nn::Embedding embedding{nullptr};
  nn::Linear dense{nullptr};
};
TORCH_MODULE(TwoParts);

const std::vector<std::vector<std::int64_t>> rows_of_rank = {{0, 1, 1}, {1, 5}, {3, 0, 3, 2, 3}};

Json sparse_gradients(const Config& config) {
  TwoParts model;
  fill(*model);
  model = train::torch::prepare_model(model, {.find_unused_parameters = config["leave_out"].get<bool>()});
  Json result;
  for (int step = 0; step < 2; ++step) {
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    const auto& rows = rows_of_rank[static_cast<std::size_t>(train::world_rank())];
    if (config["leave_out"].get<bool>() && train::world_rank() == 1)
      model->dense->forward(torch::ones({1, 2})).sum().backward();
    else
      model->forward(torch::tensor(rows)).sum().backward();
    result = {{"sparse", model->embedding->weight.grad().is_sparse()},
              {"rows", model->embedding->weight.grad().coalesce().indices().numel()},
              {"gradients", gradients_of(*model)}};
  }
  return result;
}

/// The average of what each rank would have alone.
Values sparse_reference(bool leave_out) {
  Values sum;
  for (std::size_t rank = 0; rank < rows_of_rank.size(); ++rank) {
    TwoParts model;
    fill(*model);
    auto output = leave_out && rank == 1 ? model->dense->forward(torch::ones({1, 2}))
                                         : model->forward(torch::tensor(rows_of_rank[rank]));
    (output.sum() / 3 + 0 * model->embedding->forward(torch::tensor({0})).sum()).backward();
    const auto values = gradients_of(*model);
    if (sum.empty()) sum.resize(values.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

nn::Sequential small_net() {
  nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 2));
  fill(*net);
  return net;
}

/// Gradients after one backward() with a hook.
Json with_hook(const Config& config) {
  const std::string name = config["hook"];
  train::torch::PrepareModelOptions options{.bucket_bytes = 128};
  Json seen = Json::array();
  if (name == "bf16") options.comm_hook = train::torch::CommHook::bf16;
  if (name == "fp16") options.comm_hook = train::torch::CommHook::fp16;
  if (name == "own")
    options.comm_hook = [&](train::torch::GradientBucket& bucket) {
      seen.push_back({bucket.index, bucket.parameters});
      bucket.values = train::torch::all_reduce(bucket.values / train::world_size());
    };
  auto net = train::torch::prepare_model(small_net(), options);
  for (int step = 0; step < 2; ++step) {
    for (auto& parameter : net->parameters()) parameter.mutable_grad() = at::Tensor();
    net->forward(waves({4, 4}, train::world_rank())).square().sum().backward();
  }
  return {{"gradients", gradients_of(*net)}, {"seen", seen}};
}

/// Rank r has batches_of_rank[r] batches; batch b of rank r is the same in the reference below.
const std::vector<int> batches_of_rank = {2, 5, 1};
at::Tensor batch_of(int rank, int batch) { return waves({3, 4}, 10 * rank + batch); }

Json train_joined(const Config& config) {
  auto net = small_net();
  torch::optim::Adam optimizer(net->parameters(), 0.05);
  net = train::torch::prepare_model(net, {.bucket_bytes = 128});
  const bool everywhere = config["by_world_size"];
  for (int epoch = 0; epoch < 2; ++epoch)
    train::torch::join(net,
                       [&] {
                         for (int batch = 0; batch < batches_of_rank[static_cast<std::size_t>(train::world_rank())];
                              ++batch) {
                           optimizer.zero_grad();
                           net->forward(batch_of(train::world_rank(), batch)).square().mean().backward();
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

}  // namespace

DOCTEST_TEST_CASE("every synchronized backward gives all ranks the buffers of rank 0, unless that is off") {
  for (bool shared_memory : {true, false}) {
    DOCTEST_CAPTURE(shared_memory);
    const auto apart = run_on(2, shared_memory, troupe::fn<buffers_after_a_step>, {{"on", false}});
    DOCTEST_CHECK(apart[0]["1.running_mean"] != apart[1]["1.running_mean"]);
    const auto together = run_on(2, shared_memory, troupe::fn<buffers_after_a_step>, {{"on", true}});
    DOCTEST_CHECK(together[0] == apart[0]);
    DOCTEST_CHECK(together[1] == apart[0]);
    DOCTEST_CHECK(together[1]["1.num_batches_tracked"] == Json({1.0}));
  }
}

DOCTEST_TEST_CASE("a graph that is kept for a second backward does not mind the broadcast of buffers") {
  const auto results = run_on(2, true, troupe::fn<buffers_after_a_step>, {{"on", true}, {"twice", true}});
  DOCTEST_CHECK(results[0] == results[1]);
}

DOCTEST_TEST_CASE("gradients of a sparse embedding stay sparse, and are the average on every rank") {
  for (bool shared_memory : {true, false})
    for (bool leave_out : {false, true}) {
      DOCTEST_CAPTURE(shared_memory);
      DOCTEST_CAPTURE(leave_out);
      const auto results = run_on(3, shared_memory, troupe::fn<sparse_gradients>, {{"leave_out", leave_out}});
      DOCTEST_CHECK(results[0] == results[1]);
      DOCTEST_CHECK(results[0] == results[2]);
      DOCTEST_CHECK(results[0]["sparse"] == true);
      DOCTEST_CHECK(results[0]["rows"] == (leave_out ? 4 : 5));
      DOCTEST_CHECK(largest_difference(results[0]["gradients"].get<Values>(), sparse_reference(leave_out)) < 1e-6);
    }
}

DOCTEST_TEST_CASE("a sparse embedding whose gradient is dense on one rank gets a dense average") {
  const auto results = run_on(2, true, []() -> Json {
    TwoParts model;
    fill(*model);
    model = train::torch::prepare_model(model);
    auto loss = model->forward(torch::tensor({0, 1})).sum();
    if (train::world_rank() == 1) loss = loss + model->embedding->weight.sum();
    loss.backward();
    return {model->embedding->weight.grad().is_sparse(), gradients_of(*model)};
  });
  DOCTEST_CHECK(results[0] == results[1]);
  DOCTEST_CHECK(results[0][0] == false);
}

DOCTEST_TEST_CASE("bf16 and fp16 send shorter gradients within their precision, and every rank gets the same bits") {
  for (bool shared_memory : {true, false}) {
    DOCTEST_CAPTURE(shared_memory);
    const auto exact =
        run_on(3, shared_memory, troupe::fn<with_hook>, {{"hook", "none"}})[0]["gradients"].get<Values>();
    double largest = 0;
    for (double value : exact) largest = std::max(largest, std::abs(value));
    for (const auto& [hook, precision] : {std::pair{"bf16", 1.0 / 256}, std::pair{"fp16", 1.0 / 2048}}) {
      DOCTEST_CAPTURE(hook);
      const auto results = run_on(3, shared_memory, troupe::fn<with_hook>, {{"hook", hook}});
      const auto difference = largest_difference(results[0]["gradients"].get<Values>(), exact);
      // Each rank's value is rounded once, and so is every sum; partial sums may be larger than the result.
      DOCTEST_CHECK(difference < 4 * largest * precision);
      DOCTEST_CHECK(difference > 0);
      DOCTEST_CHECK(results[0] == results[1]);
      DOCTEST_CHECK(results[0] == results[2]);
    }
  }
}

DOCTEST_TEST_CASE("a hook of the user's own averages the buckets, in the same order everywhere") {
  for (auto placement : {troupe::Placement::process, troupe::Placement::thread}) {
    const auto exact = run_on(2, true, troupe::fn<with_hook>, {{"hook", "none"}}, placement);
    const auto results = run_on(2, true, troupe::fn<with_hook>, {{"hook", "own"}}, placement);
    DOCTEST_CHECK(results[0] == results[1]);
    DOCTEST_CHECK(largest_difference(results[0]["gradients"].get<Values>(), exact[0]["gradients"].get<Values>()) <
                  1e-6);
    const Json one_step = Json::parse(R"([[0, ["2.bias", "2.weight", "0.bias"]], [1, ["0.weight"]]])");
    DOCTEST_REQUIRE(results[0]["seen"].size() == 4);
    for (std::size_t i = 0; i < 4; ++i) DOCTEST_CHECK(results[0]["seen"][i] == one_step[i % 2]);
  }
}

DOCTEST_TEST_CASE("ranks that run out of data take part with zeros, and all end with the same parameters") {
  for (bool shared_memory : {true, false})
    for (bool by_world_size : {true, false}) {
      DOCTEST_CAPTURE(shared_memory);
      DOCTEST_CAPTURE(by_world_size);
      const auto results = run_on(3, shared_memory, troupe::fn<train_joined>, {{"by_world_size", by_world_size}});
      DOCTEST_CHECK(results[0] == results[1]);
      DOCTEST_CHECK(results[0] == results[2]);
      DOCTEST_CHECK(largest_difference(results[0].get<Values>(), train_joined_alone(by_world_size)) < 1e-5);
    }
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

DOCTEST_TEST_CASE("clip_grad_norm scales the averaged gradients to the norm, dense and sparse, alike on every rank") {
  const auto results = run_on(2, true, []() -> Json {
    TwoParts model;
    fill(*model);
    model = train::torch::prepare_model(model);
    model->forward(torch::tensor({train::world_rank(), 1, 1})).sum().backward();
    const auto before = gradients_of(*model);
    const double norm = train::torch::clip_grad_norm(model, 0.5);
    const auto after = gradients_of(*model);
    const double again = train::torch::clip_grad_norm(model, 1e9);
    const double largest = train::torch::clip_grad_norm(model, 1e9, {.norm_type = INFINITY});
    return {{"before", before}, {"after", after}, {"norm", norm}, {"again", again}, {"largest", largest}};
  });
  DOCTEST_CHECK(results[0] == results[1]);
  const auto before = results[0]["before"].get<Values>();
  const auto after = results[0]["after"].get<Values>();
  double squares = 0;
  double largest = 0;
  for (double value : before) squares += value * value;
  for (double value : after) largest = std::max(largest, std::abs(value));
  const double norm = results[0]["norm"];
  DOCTEST_CHECK(std::abs(norm - std::sqrt(squares)) < 1e-5);
  DOCTEST_CHECK(norm > 0.5);
  DOCTEST_CHECK(std::abs(results[0]["again"].get<double>() - 0.5) < 1e-5);
  DOCTEST_CHECK(std::abs(results[0]["largest"].get<double>() - largest) < 1e-6);
  for (std::size_t i = 0; i < before.size(); ++i) DOCTEST_CHECK(std::abs(after[i] - before[i] * 0.5 / norm) < 1e-5);
}
