// SPDX-License-Identifier: Apache-2.0
// Averages of gradients where the ranks do not all do the same: unused parameters, several models, failures, joins.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <barrier>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/session/session.hpp"
#include "test/torch/model_support.hpp"
#include "test/torch/transports.hpp"

namespace train = troupe::train;
namespace nn = torch::nn;
using namespace troupe::test;
using troupe::Config;
using troupe::Json;

namespace {

/// Calls `check(results)` with what three workers gave, on every transport of the CPU.
template <class Function, class Check>
void on_three(Function&& function, Check&& check, const Json& config = Json::object()) {
  for (const auto& transport : transports()) {
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    check(run_on(3, transport.config, function, config));
  }
}

/// All ranks gave the same, close to what is expected.
auto equal_to(Values expected) {
  return [expected = std::move(expected)](const std::vector<Json>& results) {
    for (const auto& result : results) {
      DOCTEST_CHECK(result == results[0]);
      DOCTEST_CHECK(largest_difference(result.get<Values>(), expected) < 1e-5);
    }
  };
}

void equal_on_all(const std::vector<Json>& results) {
  for (const auto& result : results) DOCTEST_CHECK(result == results[0]);
}

at::Tensor input_of(int rank) { return waves({4, 4}, rank); }

/// Two heads on one stem.
struct TwoHeadsImpl : nn::Module {
  TwoHeadsImpl() {
    stem = register_module("stem", nn::Linear(4, 4));
    first = register_module("first", nn::Linear(4, 2));
    second = register_module("second", nn::Linear(4, 2));
    fill(*this);
  }
  at::Tensor loss(bool with_first, int rank) {
    const auto inner = stem->forward(input_of(rank)).tanh();
    return (with_first ? first : second)->forward(inner).square().sum();
  }
  nn::Linear stem{nullptr};
  nn::Linear first{nullptr};
  nn::Linear second{nullptr};
};
TORCH_MODULE(TwoHeads);

torch::optim::SGD heavy_sgd(nn::Module& model) {
  return torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.1));
}

/// Before the last backward() the first head is used by rank 0 alone, under no_sync().
Json accumulate_on_one_rank(const Config& /*config*/) {
  auto model = train::torch::prepare_model(TwoHeads(), {.find_unused_parameters = true});
  auto optimizer = heavy_sgd(*model);
  const int rank = train::world_rank();
  {
    auto guard = train::torch::no_sync(model);
    model->loss(rank == 0, rank).backward();
  }
  model->loss(false, rank).backward();
  optimizer.step();
  return parameters_of(*model);
}

Values accumulate_alone() {
  TwoHeads model;
  auto optimizer = heavy_sgd(*model);
  for (int rank = 0; rank < 3; ++rank) ((model->loss(rank == 0, rank) + model->loss(false, rank)) / 3).backward();
  optimizer.step();
  return parameters_of(*model);
}

/// A hook of one's own that averages.
void average_bucket(train::torch::GradientBucket& bucket) {
  bucket.values = train::torch::all_reduce(bucket.values / train::world_size());
}

/// A model in the middle of another one. Their gradients become ready by turns.
struct Around {
  TwoHeads outside;
  nn::Linear inside{4, 4};
  Around() { fill(*inside); }
  at::Tensor loss(bool with_head, int rank) {
    const auto inner = inside->forward(outside->stem->forward(input_of(rank)).tanh());
    return with_head ? outside->first->forward(inner).square().sum() + outside->second->forward(inner).sum()
                     : inner.square().sum();
  }
  Values gradients() {
    auto values = gradients_of(*outside);
    for (double value : gradients_of(*inside)) values.push_back(value);
    return values;
  }
};

/// With "leave_out" rank 1 does not use the heads.
Json train_two_models(const Config& config) {
  Around models;
  const bool leave_out = config["leave_out"];
  const train::torch::PrepareModelOptions options{.find_unused_parameters = leave_out,
                                                  .bucket_bytes = config["bucket_bytes"]};
  models.outside = train::torch::prepare_model(models.outside, options);
  models.inside = train::torch::prepare_model(models.inside, options);
  for (int step = 0; step < 3; ++step) {
    models.outside->zero_grad();
    models.inside->zero_grad();
    models.loss(!leave_out || train::world_rank() != 1, train::world_rank()).backward();
  }
  return models.gradients();
}

Values train_two_models_alone(bool leave_out) {
  Around models;
  for (int rank = 0; rank < 3; ++rank) (models.loss(!leave_out || rank != 1, rank) / 3).backward();
  return models.gradients();
}

nn::Sequential three_layers() {
  nn::Sequential net(nn::Linear(4, 4), nn::Tanh(), nn::Linear(4, 4), nn::Tanh(), nn::Linear(4, 4));
  fill(*net);
  return net;
}

/// Two models, which ranks put one behind the other in different orders; a function of each averages its gradients.
struct EitherOrder {
  nn::Linear small{4, 4};
  nn::Sequential large = three_layers();
  EitherOrder() { fill(*small); }
  at::Tensor loss(int rank) {
    const auto input = input_of(rank);
    const auto output = rank % 2 ? small->forward(large->forward(input)) : large->forward(small->forward(input));
    return output.square().sum();
  }
  Values gradients() const {
    auto values = gradients_of(*small);
    for (double value : gradients_of(*large)) values.push_back(value);
    return values;
  }
};

Json train_in_either_order(const Config& /*config*/) {
  EitherOrder models;
  const train::torch::PrepareModelOptions options{.bucket_bytes = 80, .comm_hook = average_bucket};
  models.small = train::torch::prepare_model(models.small, options);
  models.large = train::torch::prepare_model(models.large, options);
  models.loss(train::world_rank()).backward();
  return models.gradients();
}

Values either_order_alone() {
  EitherOrder models;
  for (int rank = 0; rank < 3; ++rank) (models.loss(rank) / 3).backward();
  return models.gradients();
}

/// A backward() that throws behind the last layer on rank 0, and before it on the others.
Json fail_and_prepare_again(const Config& config) {
  train::torch::PrepareModelOptions options{.bucket_bytes = 16};
  if (config["own_hook"]) options.comm_hook = average_bucket;
  auto net = train::torch::prepare_model(three_layers(), options);
  const int rank = train::world_rank();
  auto inner = net[1]->as<nn::Tanh>()->forward(net[0]->as<nn::Linear>()->forward(input_of(rank)));
  auto next = net[3]->as<nn::Tanh>()->forward(net[2]->as<nn::Linear>()->forward(inner));
  const auto fail = [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a bad batch"); };
  if (rank == 0) inner.register_hook(fail);
  auto output = net[4]->as<nn::Linear>()->forward(next);
  if (rank != 0) output.register_hook(fail);
  bool failed = false;
  try {
    output.square().sum().backward();
  } catch (const std::exception& error) {
    failed = std::string(error.what()).find("a bad batch") != std::string::npos;
  }
  if (!failed) throw std::runtime_error("backward() did not fail as it was told");
  net->zero_grad();
  net = train::torch::prepare_model(net, options);
  net->forward(input_of(rank)).square().sum().backward();
  return gradients_of(*net);
}

Values three_layers_alone() {
  auto net = three_layers();
  for (int rank = 0; rank < 3; ++rank) (net->forward(input_of(rank)).square().sum() / 3).backward();
  return gradients_of(*net);
}

/// Where threads of a test wait for each other.
std::barrier<>* meeting = nullptr;

/// Gradients of the last layer while backward() is at the first one; `meeting` is of both ranks.
Json gradients_on_the_way(const Config& /*config*/) {
  auto net = train::torch::prepare_model(three_layers(), {.bucket_bytes = 1});
  auto* last = net[4]->as<nn::Linear>();
  auto inner = net[1]->as<nn::Tanh>()->forward(net[0]->as<nn::Linear>()->forward(input_of(train::world_rank())));
  auto next = net[3]->as<nn::Tanh>()->forward(net[2]->as<nn::Linear>()->forward(inner));
  // Behind this all ranks have the gradients of the last layer, and sum them while they get those of the second one.
  next.register_hook([](const at::Tensor&) { meeting->arrive_and_wait(); });
  Json seen;
  inner.register_hook([&](const at::Tensor&) {
    meeting->arrive_and_wait();
    seen = {values_of(last->weight.grad()), values_of(last->bias.grad())};
    meeting->arrive_and_wait();
  });
  last->forward(next).square().sum().backward();
  return {seen, {values_of(last->weight.grad()), values_of(last->bias.grad())}};
}

/// Rank 0 has one batch, which uses the first head; nobody uses it in the others' further ones. In the end all do.
Json join_with_unused_head(const Config& /*config*/) {
  auto model = train::torch::prepare_model(TwoHeads(), {.find_unused_parameters = true});
  auto optimizer = heavy_sgd(*model);
  const int rank = train::world_rank();
  const auto step = [&](bool with_first) {
    optimizer.zero_grad();
    model->loss(with_first, rank).backward();
    optimizer.step();
  };
  train::torch::join(model,
                     [&] {
                       for (int batch = 0; batch < (rank == 0 ? 1 : 3); ++batch) step(batch == 0);
                     },
                     {.step = [&] { optimizer.step(); }});
  step(true);
  return parameters_of(*model);
}

/// Of rank 1's three batches the second one is bad; rank 0 has one batch.
Json join_with_bad_batch(const Config& /*config*/) {
  auto model = train::torch::prepare_model(TwoHeads(), {.find_unused_parameters = true, .check_gradients = true});
  auto optimizer = heavy_sgd(*model);
  const int rank = train::world_rank();
  int steps = 0;
  const auto step = [&] {
    optimizer.step();
    ++steps;
  };
  int left_out = 0;
  train::torch::join(model,
                     [&] {
                       for (int batch = 0; batch < (rank == 0 ? 1 : 3); ++batch) {
                         optimizer.zero_grad();
                         auto loss = model->loss(true, rank);
                         if (batch == 1 && rank == 1) loss = loss * NAN;
                         try {
                           loss.backward();
                         } catch (const troupe::Error&) {
                           ++left_out;
                           continue;
                         }
                         step();
                       }
                     },
                     {.step = step});
  optimizer.zero_grad();
  model->loss(true, rank).backward();
  step();
  if (steps != 3 || left_out != (rank == 0 ? 0 : 1)) throw std::runtime_error("not every rank left the batch out");
  return parameters_of(*model);
}

}  // namespace

DOCTEST_TEST_CASE("a gradient that one rank alone has from no_sync is averaged for all, though nobody uses it now") {
  on_three(troupe::fn<accumulate_on_one_rank>, equal_to(accumulate_alone()));
}

DOCTEST_TEST_CASE("one backward through two prepared models gives both the averages, in whatever order they come") {
  for (bool leave_out : {false, true})
    for (int bucket_bytes : {1, 1 << 20}) {
      DOCTEST_CAPTURE(leave_out);
      DOCTEST_CAPTURE(bucket_bytes);
      on_three(troupe::fn<train_two_models>, equal_to(train_two_models_alone(leave_out)),
               {{"leave_out", leave_out}, {"bucket_bytes", bucket_bytes}});
    }
}

DOCTEST_TEST_CASE("a backward that reaches a model on some ranks only ends with an error, not with a wait") {
  for (const auto& transport : transports()) {
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    const auto error = error_of([&] {
      run_on(3, transport.config, [] {
        auto one = train::torch::prepare_model(nn::Linear(4, 4), {.find_unused_parameters = true});
        auto other = train::torch::prepare_model(nn::Linear(4, 4), {.find_unused_parameters = true});
        auto output = other->forward(input_of(0));
        if (train::world_rank() != 1) output = one->forward(output);
        output.sum().backward();
      });
    });
    DOCTEST_CAPTURE(error.text);
    DOCTEST_CHECK(error.says("reached other prepared models"));
    DOCTEST_CHECK(error.says("(output * 0).sum()"));
  }
}

DOCTEST_TEST_CASE("functions that average two models do so in one order, in whatever order their gradients come") {
  on_three(troupe::fn<train_in_either_order>, equal_to(either_order_alone()));
}

DOCTEST_TEST_CASE("a model that is prepared again takes nothing from a backward that failed elsewhere on each rank") {
  for (bool own_hook : {false, true}) {
    DOCTEST_CAPTURE(own_hook);
    on_three(troupe::fn<fail_and_prepare_again>, equal_to(three_layers_alone()), {{"own_hook", own_hook}});
  }
}

DOCTEST_TEST_CASE("a rank without data leaves a parameter alone that nobody uses any more") {
  on_three(troupe::fn<join_with_unused_head>, equal_on_all);
}

DOCTEST_TEST_CASE("a rank without data leaves a bad batch out as the others do") {
  on_three(troupe::fn<join_with_bad_batch>, equal_on_all);
}

DOCTEST_TEST_CASE("models that are sparse, tied, named, typed or buffered otherwise are refused with both lists") {
  const auto refused = [](auto&& make) {
    const auto error = error_of([&] { run_on(2, troupe::TorchConfig{.timeout_s = 20}, make); });
    DOCTEST_CHECK(error.code == troupe::ErrorCode::invalid_argument);
    return error;
  };
  const auto sparse = refused(
      [] { train::torch::prepare_model(nn::Embedding(nn::EmbeddingOptions(6, 2).sparse(train::world_rank() == 1))); });
  DOCTEST_CHECK(sparse.says("Rank 1:\nsparse parameter weight"));
  const auto tied = refused([] {
    nn::Linear layer(2, 2);
    nn::Sequential model(layer);
    model->push_back(train::world_rank() == 1 ? layer : nn::Linear(2, 2));
    train::torch::prepare_model(model);
  });
  DOCTEST_CHECK(tied.says("parameter 1.weight is the same as 0.weight"));
  const auto typed = refused([] {
    nn::Linear layer(2, 2);
    if (train::world_rank() == 1) layer->to(torch::kDouble);
    train::torch::prepare_model(layer);
  });
  DOCTEST_CHECK(typed.says("parameter weight double [2, 2]"));
  const auto named = refused([] {
    auto module = std::make_shared<nn::Module>();
    module->register_parameter(train::world_rank() == 1 ? "left" : "right", torch::zeros({2}));
    train::torch::prepare_model(module);
  });
  DOCTEST_CHECK(named.says("Rank 1:\nparameter left float [2]"));
  const auto buffered = refused([] {
    auto module = std::make_shared<nn::Module>();
    module->register_parameter("weight", torch::zeros({2}));
    if (train::world_rank() == 1) module->register_buffer("mean", torch::zeros({3}));
    train::torch::prepare_model(module);
  });
  DOCTEST_CHECK(buffered.says("buffer mean float [3]"));
}

DOCTEST_TEST_CASE("a parameter that no worker used keeps no gradient, and zeros where gradients live are kept") {
  on_three(
      []() -> Json {
        auto model = train::torch::prepare_model(TwoHeads(), {.find_unused_parameters = true});
        const auto has_gradient = [&] { return model->second->weight.grad().defined(); };
        Json seen = Json::array();
        model->loss(true, 0).backward();
        seen.push_back(has_gradient());
        model->zero_grad();
        model->loss(train::world_rank() != 1, 0).backward();
        seen.push_back(has_gradient());
        model->zero_grad(/*set_to_none=*/false);
        seen.push_back(values_of(model->second->weight.grad()) == Values(8, 0.0));
        model->loss(false, 0).backward();
        const auto kept = values_of(model->second->weight.grad());
        TwoHeads alone;
        alone->loss(false, 0).backward();
        seen.push_back(largest_difference(kept, values_of(alone->second->weight.grad())) < 1e-5);
        return seen;
      },
      [](const std::vector<Json>& results) {
        for (const auto& result : results) DOCTEST_CHECK(result == Json({false, true, true, true}));
      });
}

DOCTEST_TEST_CASE("broadcast_buffers gives all ranks the buffers of rank 0") {
  on_three(
      []() -> Json {
        nn::BatchNorm1d norm(2);
        norm->running_mean.fill_(train::world_rank() + 5);
        train::torch::broadcast_buffers(norm.ptr());
        return values_of(norm->running_mean);
      },
      equal_to({5, 5}));
}

DOCTEST_TEST_CASE("the last layer's gradients are averaged while backward still computes those of the first one") {
  std::barrier<> both(2);
  meeting = &both;
  const auto results = run_on(2, true, troupe::fn<gradients_on_the_way>, Json::object(), troupe::Placement::thread);
  auto alone = three_layers();
  for (int rank = 0; rank < 2; ++rank) (alone->forward(input_of(rank)).square().sum() / 2).backward();
  const auto expected = values_of(alone[4]->as<nn::Linear>()->weight.grad());
  for (const auto& result : results) {
    DOCTEST_CHECK(largest_difference(result[0][0].get<Values>(), expected) < 1e-5);
    DOCTEST_CHECK(result[0] == result[1]);
  }
}

DOCTEST_TEST_CASE("a model of a group of one worker is left as it is") {
  const auto results = run_on(1, true, []() -> Json {
    auto model = train::torch::prepare_model(three_layers());
    model->forward(input_of(0)).sum().backward();
    Json hooks = Json::array();
    for (const auto& parameter : model->parameters()) {
      const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
      hooks.push_back(accumulator->post_hooks().size());
    }
    return hooks;
  });
  DOCTEST_CHECK(results[0] == Json(std::vector<int>(6, 0)));
}

DOCTEST_TEST_CASE("models are told apart however many were prepared between them") {
  const auto error = error_of([] {
    run_on(2, true, [] {
      auto one = train::torch::prepare_model(nn::Linear(1, 1), {.find_unused_parameters = true});
      for (int i = 0; i < 255; ++i) train::torch::prepare_model(nn::Linear(1, 1));
      auto other = train::torch::prepare_model(nn::Linear(1, 1), {.find_unused_parameters = true});
      (train::world_rank() == 0 ? one : other)->forward(torch::ones({1, 1})).sum().backward();
    });
  });
  DOCTEST_CAPTURE(error.text);
  DOCTEST_CHECK(error.says("reached other prepared models"));
}

DOCTEST_TEST_CASE("check_gradients sees what a comm_hook makes infinite") {
  on_three(
      []() -> Json {
        nn::Linear layer(1, 1);
        layer =
            train::torch::prepare_model(layer, {.check_gradients = true, .comm_hook = train::torch::CommHook::fp16});
        const auto text = error_of([&] { layer->forward(torch::full({1, 1}, 1e5)).sum().backward(); }).text;
        layer->zero_grad();
        layer->forward(torch::full({1, 1}, 8.0)).sum().backward();
        return {text, gradients_of(*layer)};
      },
      [](const std::vector<Json>& results) {
        for (const auto& result : results) {
          const auto text = result[0].get<std::string>();
          DOCTEST_CAPTURE(text);
          DOCTEST_CHECK(text.find(": weight behind the comm_hook. A learning rate") != std::string::npos);
          DOCTEST_CHECK(largest_difference(result[1].get<Values>(), {8, 1}) < 1e-2);
        }
      });
}

DOCTEST_TEST_CASE("a rank in its own comm_hook is seen at work there, not waiting for the others") {
  const auto results = run_on(2, true, []() -> Json {
    Json seen = Json::array();
    const auto look = [&](train::torch::GradientBucket& bucket) {
      const auto* doing = troupe::detail::Session::require("test")->progress().doing();
      seen.push_back(doing ? doing->name : "user code");
      average_bucket(bucket);
    };
    auto net = train::torch::prepare_model(three_layers(), {.bucket_bytes = 80, .comm_hook = look});
    net->forward(input_of(0)).sum().backward();
    return seen;
  });
  for (const auto& seen : results) DOCTEST_CHECK(seen == Json(std::vector<std::string>(3, "user code")));
}

DOCTEST_TEST_CASE("gradients travel in a first bucket of 1 MB, and others of 4 MB") {
  const auto results = run_on(2, troupe::TorchConfig{}, []() -> Json {
    auto module = std::make_shared<nn::Module>();
    for (int i = 0; i < 20; ++i) module->register_parameter("p" + std::to_string(i), torch::zeros({128 << 10}));
    std::vector<std::size_t> sizes;
    train::torch::prepare_model(module, {.comm_hook = [&](train::torch::GradientBucket& bucket) {
                                  sizes.push_back(bucket.parameters.size());
                                }});
    auto loss = torch::zeros({});
    for (const auto& parameter : module->parameters()) loss = loss + parameter.sum();
    loss.backward();
    std::sort(sizes.begin(), sizes.end());
    return sizes;
  });
  for (const auto& sizes : results) DOCTEST_CHECK(sizes == Json({2, 2, 8, 8}));
}
