// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm, and training with everything on at once: as one process with the whole batch.
#include <cmath>
#include <string>
#include <thread>

#include <troupe/torch_nn.hpp>

#include "test/torch/model_support.hpp"
#include "test/torch/transports.hpp"

namespace train = troupe::train;
namespace nn = torch::nn;
using namespace troupe::test;
using troupe::Config;
using troupe::Json;

namespace {

/// How many samples each rank has.
std::vector<std::int64_t> shares(bool uneven) {
  return uneven ? std::vector<std::int64_t>{1, 5, 0} : std::vector<std::int64_t>{2, 2, 2};
}

at::Tensor whole_batch(bool image) { return image ? waves({6, 3, 2, 4}, 0.5) * 3 + 100 : waves({6, 3}, 0.5) * 3 + 100; }
at::Tensor target_for(const at::Tensor& input) { return waves(input.sizes(), 2); }

template <class Norm>
Json state_of(Norm& norm, const at::Tensor& output, const at::Tensor& input) {
  Json state = {{"output", values_of(output)}, {"input", values_of(input.grad())}};
  for (const auto& item : norm->named_buffers()) state["buffers"].push_back(values_of(item.value()));
  state["weight"] = values_of(norm->weight.grad());
  state["bias"] = values_of(norm->bias.grad());
  norm->eval();
  state["eval"] = values_of(norm->forward(input.detach()));
  return state;
}

Json sync_norm(const Config& config) {
  train::torch::SyncBatchNorm norm(nn::BatchNormOptions(3).momentum(0.3));
  fill(*norm);
  norm = train::torch::prepare_model(norm);
  const auto counts = shares(config["uneven"]);
  const auto rank = static_cast<std::size_t>(train::world_rank());
  const auto begin =
      std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank), std::int64_t{0});
  const auto whole = whole_batch(config["image"]);
  auto input = whole.narrow(0, begin, counts[rank]).clone().requires_grad_();
  const auto target = target_for(whole).narrow(0, begin, counts[rank]);
  auto output = norm->forward(input);
  // The mean over the whole batch, once averaged over 3 ranks.
  ((output - target).pow(3).sum() / static_cast<double>(whole.numel()) * train::world_size()).backward();
  return state_of(norm, output, input);
}

Json plain_norm(bool image) {
  auto input = whole_batch(image).requires_grad_();
  const auto target = target_for(input);
  const auto check = [&](auto norm) {
    fill(*norm);
    auto output = norm->forward(input);
    (output - target).pow(3).mean().backward();
    return state_of(norm, output, input);
  };
  const auto options = nn::BatchNormOptions(3).momentum(0.3);
  return image ? check(nn::BatchNorm2d(options)) : check(nn::BatchNorm1d(options));
}

at::ScalarType type_of(const std::string& name) {
  return name == "bf16" ? torch::kBFloat16 : name == "half" ? torch::kHalf : torch::kDouble;
}

/// Output, gradient of the input, type of both, and the running mean; what else is computed has full precision.
template <class Norm>
Json typed_results(Norm norm, const at::Tensor& whole, std::int64_t begin, std::int64_t count) {
  auto input = whole.narrow(0, begin, count).clone().requires_grad_();
  const auto output = norm->forward(input);
  const auto type = output.scalar_type();
  const bool is_kept = type == input.scalar_type();
  const auto target = target_for(whole_batch(false)).narrow(0, begin, count);
  (output.to(torch::kDouble) - target).pow(3).sum().backward();
  const char* name = type == torch::kBFloat16 ? "bf16" : type == torch::kHalf ? "half" : "double";
  return {values_of(output), values_of(input.grad()), is_kept ? name : "another", values_of(norm->running_mean)};
}

Json typed_norm(const Config& config) {
  const auto type = type_of(config["type"]);
  train::torch::SyncBatchNorm norm(3);
  if (type == torch::kDouble) norm->to(type);
  return typed_results(norm, whole_batch(false).to(type), 2 * train::world_rank(), 2);
}

/// Over the whole batch, as floats or doubles.
Json typed_norm_alone(const std::string& name) {
  const auto type = type_of(name);
  nn::BatchNorm1d norm(3);
  if (type == torch::kDouble) norm->to(type);
  return typed_results(norm, whole_batch(false).to(type).to(norm->weight.scalar_type()), 0, 6);
}

/// Accumulation, SyncBatchNorm, clipping and Adam together, on this rank's share of each micro batch of 12.
Values train_with_everything(const Config&) {
  // No bias before the norm, which takes it out again: its gradient is rounding noise that Adam would make large.
  nn::Sequential model(nn::Linear(nn::LinearOptions(4, 8).bias(false)), train::torch::SyncBatchNorm(8), nn::Tanh(),
                       nn::Linear(8, 3));
  fill(*model);
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  model = train::torch::prepare_model(model, {.bucket_bytes = 128, .check_gradients = true});
  const auto share = 12 / train::world_size();
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    for (int piece = 0; piece < 3; ++piece) {
      const auto x = waves({12, 4}, step * 3 + piece).narrow(0, share * train::world_rank(), share);
      const auto y = waves({12, 3}, step + piece).narrow(0, share * train::world_rank(), share);
      const auto backward = [&] { (torch::mse_loss(model->forward(x), y) / 3).backward(); };
      if (piece < 2) {
        auto guard = train::torch::no_sync(model);
        backward();
      } else {
        backward();
      }
    }
    train::torch::clip_grad_norm(model, 0.1, {.error_if_nonfinite = true});
    optimizer.step();
  }
  return parameters_of(*model);
}

}  // namespace

DOCTEST_TEST_CASE("SyncBatchNorm over ranks equals BatchNorm over the whole batch, also for unequal shares") {
  for (const auto& transport : transports())
    for (bool image : {false, true}) {
      const auto expected = plain_norm(image);
      for (bool uneven : {false, true}) {
        const std::string carried_by = transport.name;
        DOCTEST_CAPTURE(carried_by);
        DOCTEST_CAPTURE(image);
        DOCTEST_CAPTURE(uneven);
        const auto results = run_on(3, transport.config, troupe::fn<sync_norm>, {{"uneven", uneven}, {"image", image}});
        // Values lie around 100 and are normalized to around 1: 1e-4 is what float leaves of them.
        for (const char* name : {"output", "input", "eval"}) {
          DOCTEST_CAPTURE(name);
          Values together;
          for (const auto& result : results)
            for (double value : result[name].get<Values>()) together.push_back(value);
          // Gradients of inputs are those of the sum over ranks, 3 times the mean.
          if (name == std::string("input"))
            for (auto& value : together) value /= 3;
          DOCTEST_CHECK(largest_difference(together, expected[name].get<Values>()) < 1e-4);
        }
        for (const auto& result : results) {
          DOCTEST_CHECK(result["buffers"] == results[0]["buffers"]);
          DOCTEST_CHECK(result["weight"] == results[0]["weight"]);
          DOCTEST_CHECK(largest_difference(result["weight"].get<Values>(), expected["weight"].get<Values>()) < 1e-4);
          DOCTEST_CHECK(largest_difference(result["bias"].get<Values>(), expected["bias"].get<Values>()) < 1e-4);
          for (std::size_t i = 0; i < 3; ++i)
            DOCTEST_CHECK(largest_difference(result["buffers"][i].get<Values>(), expected["buffers"][i].get<Values>()) <
                          1e-4);
        }
      }
    }
}

DOCTEST_TEST_CASE("SyncBatchNorm with one worker, cumulative averages or no statistics of its own works as BatchNorm") {
  const auto results = run_on(1, true, []() -> Json {
    const auto input = waves({6, 3}, 1);
    Json pairs = Json::array();
    for (const auto& options : {nn::BatchNormOptions(3).momentum(torch::nullopt),
                                nn::BatchNormOptions(3).affine(false).track_running_stats(false)}) {
      train::torch::SyncBatchNorm ours(options);
      nn::BatchNorm1d theirs(options);
      for (int i = 0; i < 3; ++i) pairs.push_back({values_of(ours->forward(input)), values_of(theirs->forward(input))});
      ours->eval();
      theirs->eval();
      pairs.push_back({values_of(ours->forward(input)), values_of(theirs->forward(input))});
    }
    return pairs;
  });
  DOCTEST_CHECK(results[0].size() == 8);
  for (const auto& pair : results[0]) DOCTEST_CHECK(pair[0] == pair[1]);
}

DOCTEST_TEST_CASE("SyncBatchNorm outside a worker, or without a group, trains as BatchNorm") {
  const auto pair = [] {
    const auto input = waves({6, 3}, 1);
    train::torch::SyncBatchNorm ours(3);
    nn::BatchNorm1d theirs(3);
    ours->forward(input).square().sum().backward();
    theirs->forward(input).square().sum().backward();
    return Json{{gradients_of(*ours), values_of(ours->running_var)},
                {gradients_of(*theirs), values_of(theirs->running_var)}};
  };
  const auto here = pair();
  DOCTEST_CHECK(here[0] == here[1]);
  TestTrainer trainer({.num_workers = 1});
  const auto in_worker = trainer->run(pair)[0];
  DOCTEST_CHECK(in_worker[0] == in_worker[1]);
}

DOCTEST_TEST_CASE("SyncBatchNorm on a thread beside ranks that is bound to none says how to bind it") {
  const auto body = []() -> Json {
    std::string refused;
    Values bound;
    std::thread([&, rank = train::world_rank(), context = train::context()] {
      train::torch::SyncBatchNorm norm(1);
      const auto input = torch::full({1, 1}, static_cast<float>(rank));
      try {
        norm->forward(input);
      } catch (const troupe::Error& error) {
        refused = error.what();
      }
      const train::ContextGuard guard(context);
      bound = values_of(norm->forward(input));
    }).join();
    return {refused, bound[0]};
  };
  const auto results = run_on(2, true, body, Json::object(), troupe::Placement::thread);
  for (const auto& result : results) {
    const auto text = result[0].get<std::string>();
    DOCTEST_CAPTURE(text);
    DOCTEST_CHECK(text.find("SyncBatchNorm was called where no worker is") != std::string::npos);
    DOCTEST_CHECK(text.find("ContextGuard") != std::string::npos);
  }
  DOCTEST_CHECK(std::abs(results[0][1].get<double>() + 1) < 1e-4);
  DOCTEST_CHECK(std::abs(results[1][1].get<double>() - 1) < 1e-4);
}

DOCTEST_TEST_CASE("SyncBatchNorm normalizes short types as floats and doubles as such, and gives back their type") {
  for (const auto& transport : transports())
    for (const auto& [type, precision] :
         {std::pair{"bf16", 1.0 / 256}, std::pair{"half", 1.0 / 2048}, std::pair{"double", 1e-12}}) {
      const std::string name = transport.name;
      DOCTEST_CAPTURE(name);
      DOCTEST_CAPTURE(type);
      const auto results = run_on(3, transport.config, troupe::fn<typed_norm>, {{"type", type}});
      const auto expected = typed_norm_alone(type);
      for (std::size_t i = 0; i < 2; ++i) {  // outputs and gradients of inputs
        DOCTEST_CAPTURE(i);
        Values together;
        for (const auto& result : results)
          for (double value : result[i].get<Values>()) together.push_back(value);
        const auto wanted = expected[i].get<Values>();
        const double largest = largest_difference(wanted, Values(wanted.size(), 0.0));
        DOCTEST_CHECK(largest_difference(together, wanted) < 2 * largest * precision);
      }
      const double statistics = type == std::string("double") ? 1e-10 : 1e-4;
      for (const auto& result : results) {
        DOCTEST_CHECK(result[2] == type);
        DOCTEST_CHECK(largest_difference(result[3].get<Values>(), expected[3].get<Values>()) < statistics);
      }
    }
}

DOCTEST_TEST_CASE("SyncBatchNorm says that it has no second derivative") {
  const auto results = run_on(2, true, []() -> Json {
    train::torch::SyncBatchNorm norm(3);
    const auto input = waves({4, 3}, train::world_rank()).requires_grad_();
    const auto loss = norm->forward(input).pow(3).sum();
    return error_of([&] { loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true); }).text;
  });
  for (const auto& text : results) {
    DOCTEST_CAPTURE(text);
    DOCTEST_CHECK(text.get<std::string>().find("no second derivative") != std::string::npos);
  }
}

DOCTEST_TEST_CASE("SyncBatchNorm refuses inputs of another shape, and batches of one value") {
  const auto body = [](const Config& config) {
    train::torch::SyncBatchNorm norm(3);
    const bool shape = config["shape"];
    norm->forward(shape ? torch::ones({2, 4}) : torch::ones({train::world_rank() == 0 ? 1 : 0, 3}));
  };
  const auto shape = error_of([&] { run_on(2, true, body, {{"shape", true}}); });
  DOCTEST_CHECK(shape.says("[2, 4]"));
  DOCTEST_CHECK(shape.says("(N, 3, ...)"));
  DOCTEST_CHECK(error_of([&] { run_on(2, true, body, {{"shape", false}}); }).says("more than one value a channel"));
}

DOCTEST_TEST_CASE("accumulation, SyncBatchNorm, clipping and Adam together train as one process, alike to the bit") {
  const auto alone = run_on(1, true, troupe::fn<train_with_everything>)[0].get<Values>();
  for (bool shared_memory : {true, false})
    for (int workers : {2, 3}) {
      DOCTEST_CAPTURE(shared_memory);
      DOCTEST_CAPTURE(workers);
      const auto together = run_on(workers, shared_memory, troupe::fn<train_with_everything>);
      for (const auto& one : together) DOCTEST_CHECK(one == together[0]);
      DOCTEST_CHECK(largest_difference(together[0].get<Values>(), alone) < 1e-5);
      DOCTEST_CHECK(run_on(workers, shared_memory, troupe::fn<train_with_everything>) == together);
    }
}
