// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include <cmath>
#include <limits>

#include "test/integration/support.hpp"
#include "test/support/skip.hpp"

namespace train = troupe::train;
using namespace troupe::test;
using train::torch::Autocast;
using train::torch::GradScaler;
using troupe::Json;

namespace {

/// libtorch 1.13 does not multiply half precision matrices on CPUs.
constexpr bool has_half = TORCH_VERSION_MAJOR >= 2;
constexpr float infinity = std::numeric_limits<float>::infinity();

/// One parameter of value 1 whose gradient can be set.
struct OneWeight {
  explicit OneWeight(double rate = 1) : weight(torch::ones({1}).set_requires_grad(true)), sgd({weight}, rate) {}
  void set_gradient(float value) { weight.mutable_grad() = torch::full({1}, value); }
  double value() const { return weight.item<double>(); }

  torch::Tensor weight;
  torch::optim::SGD sgd;
};

std::string type_of_product() {
  return c10::toString(torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type());
}

/// Trains a small net on its share of 64 samples; the loss over all samples at the end, in single precision.
Json train_net(const troupe::Config& config) {
  const std::string precision = config["precision"];
  torch::manual_seed(0);
  const auto x = torch::randn({64, 8});
  const auto y = (x.sum(1, true) > 0).to(torch::kFloat);
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto dtype = precision == "half" ? at::kHalf : at::kBFloat16;
  auto [model, optimizer] =
      train::torch::accelerate(net, sgd, {.amp = precision != "float", .dtype = dtype, .scaler = {.init_scale = 1024}});
  auto loader = train::torch::prepare_data_loader({x, y}, {.batch_size = 8, .shuffle = true});
  std::string seen;
  for (int epoch = 0; epoch < 30; ++epoch)
    for (auto& [inputs, targets] : loader) {
      optimizer.zero_grad();
      auto autocast = train::torch::autocast();
      auto outputs = model->forward(inputs);
      seen = c10::toString(outputs.scalar_type());
      auto loss = torch::mse_loss(outputs.to(torch::kFloat), targets);
      train::torch::backward(loss);
      optimizer.step();
    }
  torch::NoGradGuard no_grad;
  return {{"loss", torch::mse_loss(model->forward(x), y).item<double>()},
          {"seen", seen},
          {"scaler", train::torch::grad_scaler().state()}};
}

}  // namespace

DOCTEST_TEST_CASE("training in bfloat16 and half precision ends near that in single precision, alike on all workers") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2, .resources_per_worker = {{"CPU", 1}}});
  const auto train = [&](const char* precision) {
    const auto results = trainer->run(troupe::fn<train_net>, {.config = {{"precision", precision}}});
    DOCTEST_CHECK(results[0] == results[1]);
    return results[0];
  };
  const auto single = train("float");
  const auto bfloat = train("bfloat16");
  DOCTEST_CHECK(single["seen"] == "Float");
  DOCTEST_CHECK(bfloat["seen"] == "BFloat16");
  DOCTEST_CHECK(single["loss"] < 0.1);
  DOCTEST_CHECK(std::abs(bfloat["loss"].get<double>() - single["loss"].get<double>()) < 0.01);
  DOCTEST_CHECK(single["loss"] != bfloat["loss"]);
  DOCTEST_CHECK(bfloat["scaler"] == Json::object());  // bfloat16 needs no scale
  if (has_half) {
    const auto half = train("half");
    DOCTEST_CHECK(half["seen"] == "Half");
    DOCTEST_CHECK(std::abs(half["loss"].get<double>() - single["loss"].get<double>()) < 0.002);
    DOCTEST_CHECK(half["scaler"]["scale"] == 1024.0);
    DOCTEST_CHECK(half["scaler"]["growth_tracker"] == 30 * 4);
  } else {
    DOCTEST_CHECK(error_of([&] { (void)train("half"); }).says("libtorch 2"));
  }
  // Nothing of a run is left in the next one of the same workers.
  DOCTEST_CHECK(train("float") == single);
}

DOCTEST_TEST_CASE("an infinite gradient on one worker leaves the step out on all, and halves the scale everywhere") {
  if (!has_half) return skip("half precision on CPUs needs libtorch 2");
  on_both_placements([](troupe::Placement placement) {
    TestTrainer trainer({.backend = "torch", .num_workers = 2, .placement = placement});
    const auto results = trainer->run([]() -> Json {
      train::torch::accelerate({.amp = true, .dtype = at::kHalf});
      OneWeight one;
      auto optimizer = train::torch::prepare_optimizer(one.sgd);
      Json seen = Json::array();
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        // The model is not prepared: the workers' gradients differ. Rank 1's second one overflows.
        auto loss = one.weight.sum() * (step == 1 && train::world_rank() == 1 ? infinity : 0.25F);
        train::torch::backward(loss);
        optimizer.step();
        seen.push_back({one.value(), optimizer.skipped(), train::torch::grad_scaler().get_scale()});
      }
      return seen;
    });
    for (const auto& result : results)
      DOCTEST_CHECK(result == Json::parse("[[0.75,false,65536.0],[0.75,true,32768.0],[0.5,false,32768.0]]"));
  });
}

DOCTEST_TEST_CASE("the scale grows and shrinks as that of PyTorch, and its state goes through JSON") {
  GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  OneWeight one(0.5);
  const auto step = [&](float gradient) {
    DOCTEST_CHECK(scaler.scale(torch::ones({})).item<double>() == scaler.get_scale());
    one.set_gradient(gradient * static_cast<float>(scaler.get_scale()));
    const bool made = scaler.step(one.sgd);
    scaler.update();
    return made;
  };
  DOCTEST_CHECK(step(0.5F));
  DOCTEST_CHECK(one.value() == 0.75);  // the gradient was divided by the scale
  DOCTEST_CHECK(step(0));
  DOCTEST_CHECK(scaler.get_scale() == 8);
  DOCTEST_CHECK(scaler.state()["growth_tracker"] == 2);
  DOCTEST_CHECK(step(0));
  DOCTEST_CHECK(scaler.get_scale() == 16);
  DOCTEST_CHECK(step(0));
  DOCTEST_CHECK(!step(infinity));
  DOCTEST_CHECK(scaler.get_scale() == 8);
  DOCTEST_CHECK(scaler.state()["growth_tracker"] == 0);
  DOCTEST_CHECK(!step(NAN));
  DOCTEST_CHECK(scaler.get_scale() == 4);
  DOCTEST_CHECK(one.value() == 0.75);
  DOCTEST_CHECK(step(0));

  GradScaler restored;
  DOCTEST_CHECK(restored.get_scale() == 65536);
  DOCTEST_CHECK(restored.state() == Json{{"scale", 65536.0},
                                         {"growth_factor", 2.0},
                                         {"backoff_factor", 0.5},
                                         {"growth_interval", 2000},
                                         {"growth_tracker", 0}});
  restored.load_state(Json::parse(scaler.state().dump()));
  DOCTEST_CHECK(restored.state() == scaler.state());
  DOCTEST_CHECK(restored.state()["growth_tracker"] == 1);

  // It does not grow out of what a float holds.
  GradScaler large({.init_scale = std::ldexp(1.0, 127), .growth_interval = 1});
  large.update();
  DOCTEST_CHECK(large.get_scale() == std::ldexp(1.0, 127));
}

DOCTEST_TEST_CASE("gradients can be unscaled before the step, once, and sparse ones are") {
  GradScaler scaler({.init_scale = 4});
  OneWeight one;
  scaler.scale(one.weight.sum() * 0.5).backward();
  scaler.unscale(one.sgd);
  DOCTEST_CHECK(one.weight.grad().item<double>() == 0.5);
  DOCTEST_CHECK(error_of([&] { scaler.unscale(one.sgd); }).code == troupe::ErrorCode::invalid_state);
  DOCTEST_CHECK(scaler.step(one.sgd));
  DOCTEST_CHECK(one.value() == 0.5);

  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  torch::optim::SGD sgd(table->parameters(), 0.1);
  scaler.scale(table->forward(torch::tensor({1, 1, 3})).sum()).backward();
  scaler.unscale(sgd);
  const auto gradient = table->weight.grad().to_dense();
  DOCTEST_CHECK(gradient[1][0].item<double>() == 2);
  DOCTEST_CHECK(gradient[3][1].item<double>() == 1);

  // A step that is left out after all leaves nothing behind.
  scaler.scale(one.weight.sum() * 0.5).backward();
  scaler.unscale(one.sgd);
  scaler.update();
  one.sgd.zero_grad();
  scaler.scale(one.weight.sum() * 0.5).backward();
  scaler.unscale(one.sgd);
  DOCTEST_CHECK(one.weight.grad().item<double>() == 0.5);

  // If its gradients were infinite, the scale shrinks all the same.
  one.set_gradient(infinity);
  scaler.update();
  const auto before = scaler.get_scale();
  scaler.unscale(one.sgd);
  scaler.update();
  DOCTEST_CHECK(scaler.get_scale() == before / 2);
  DOCTEST_CHECK(scaler.state()["growth_tracker"] == 0);

  GradScaler off({.enabled = false});
  auto loss = torch::ones({});
  DOCTEST_CHECK(off.scale(loss).is_same(loss));
  DOCTEST_CHECK(off.state() == Json::object());
  off.load_state(Json::object());
}

DOCTEST_TEST_CASE("two prepared optimizers share one scale, which their steps with the same gradients adapt once") {
  if (!has_half) return skip("half precision on CPUs needs libtorch 2");
  TestTrainer trainer({.backend = "torch", .num_workers = 0});
  const auto results = trainer->run([]() -> Json {
    const train::torch::AccelerateOptions options{
        .amp = true, .dtype = at::kHalf, .scaler = {.init_scale = 8, .growth_interval = 3}};
    train::torch::accelerate(options);
    OneWeight one;
    OneWeight two;
    auto first = train::torch::prepare_optimizer(one.sgd);
    train::torch::accelerate(options);  // for another model
    auto second = train::torch::prepare_optimizer(two.sgd);
    Json seen = Json::array();
    for (const float factor : {1.0F, 1.0F, 1.0F, infinity, 1.0F}) {
      first.zero_grad();
      second.zero_grad();
      train::torch::backward(one.weight.sum() * 0.125F * factor + two.weight.sum() * 0.25F * factor);
      first.unscale();
      second.unscale();
      first.step();
      second.step();
      seen.push_back({one.value(), two.value(), train::torch::grad_scaler().get_scale()});
    }
    return seen;
  });
  DOCTEST_CHECK(results[0] == Json::parse("[[0.875,0.75,8.0],[0.75,0.5,8.0],[0.625,0.25,16.0],[0.625,0.25,8.0],"
                                          "[0.5,0.0,8.0]]"));
}

DOCTEST_TEST_CASE("an optimizer that leaves out a step behind unscale() makes the next one as always") {
  if (!has_half) return skip("half precision on CPUs needs libtorch 2");
  TestTrainer trainer({.backend = "torch", .num_workers = 0});
  const auto results = trainer->run([]() -> Json {
    train::torch::accelerate({.amp = true, .dtype = at::kHalf, .scaler = {.init_scale = 8}});
    OneWeight one;
    OneWeight two;
    auto first = train::torch::prepare_optimizer(one.sgd);
    auto second = train::torch::prepare_optimizer(two.sgd);
    for (const bool clips : {true, false}) {  // the step behind it unscales by itself, or not
      for (const bool leaves_out : {true, false}) {
        first.zero_grad();
        second.zero_grad();
        train::torch::backward(one.weight.sum() * 0.125F + two.weight.sum() * 0.25F);
        if (leaves_out || clips) first.unscale();
        if (!leaves_out) first.step();
        second.step();
      }
    }
    return {one.value(), two.value()};
  });
  DOCTEST_CHECK(results[0] == Json{0.75, 0.0});
}

DOCTEST_TEST_CASE("the only optimizer may leave out steps behind unscale(), and those count as steps") {
  if (!has_half) return skip("half precision on CPUs needs libtorch 2");
  TestTrainer trainer({.backend = "torch", .num_workers = 0});
  const auto results = trainer->run([]() -> Json {
    train::torch::accelerate({.amp = true, .dtype = at::kHalf, .scaler = {.init_scale = 8, .growth_interval = 3}});
    OneWeight one;
    auto optimizer = train::torch::prepare_optimizer(one.sgd);
    Json scales = Json::array();
    const auto pass = [&](float factor, bool clips, bool steps) {
      optimizer.zero_grad();
      scales.push_back(train::torch::grad_scaler().get_scale());
      train::torch::backward(one.weight.sum() * 0.125F * factor);
      if (clips) optimizer.unscale();
      if (steps) optimizer.step();
    };
    pass(1, true, false);
    pass(1, true, true);
    pass(infinity, true, false);
    pass(1, false, true);
    pass(infinity, true, false);
    pass(1, true, true);
    pass(1, true, false);
    pass(1, true, false);
    pass(1, true, false);
    return {one.value(), scales};
  });
  DOCTEST_CHECK(results[0] == Json::parse("[0.625,[8.0,8.0,8.0,4.0,4.0,2.0,2.0,2.0,4.0]]"));
}

DOCTEST_TEST_CASE("the gradient of a parameter that a model has twice is unscaled once") {
  torch::nn::Linear shared(torch::nn::LinearOptions(1, 1).bias(false));
  torch::nn::Sequential model(shared, shared);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  DOCTEST_REQUIRE(model->parameters().size() == 2);
  GradScaler scaler({.init_scale = 4});
  scaler.scale(shared->weight.sum()).backward();
  scaler.unscale(sgd);
  DOCTEST_CHECK(shared->weight.grad().item<double>() == 1);
}

DOCTEST_TEST_CASE("autocast guards nest, end with an exception, belong to their thread, and forget casts at the end") {
  DOCTEST_CHECK(type_of_product() == "Float");
  {
    Autocast outer(c10::DeviceType::CPU, at::kBFloat16);
    DOCTEST_CHECK(type_of_product() == "BFloat16");
    {
      Autocast inner(c10::DeviceType::CPU, at::kBFloat16, false);
      DOCTEST_CHECK(type_of_product() == "Float");
      Autocast innermost(c10::DeviceType::CPU, has_half ? at::kHalf : at::kBFloat16);
      DOCTEST_CHECK(type_of_product() == (has_half ? "Half" : "BFloat16"));
    }
    DOCTEST_CHECK(type_of_product() == "BFloat16");
    std::string elsewhere;
    std::thread([&] { elsewhere = type_of_product(); }).join();
    DOCTEST_CHECK(elsewhere == "Float");
    Autocast nothing;
    DOCTEST_CHECK(type_of_product() == "BFloat16");
  }
  DOCTEST_CHECK(type_of_product() == "Float");
  try {
    Autocast guard(c10::DeviceType::CPU, at::kBFloat16);
    throw std::runtime_error("in the middle");
  } catch (const std::runtime_error&) {
  }
  DOCTEST_CHECK(type_of_product() == "Float");

  // The cast of a parameter is kept inside a guard, so a change would not be seen before its end.
  auto weight = torch::ones({2, 2}).set_requires_grad(true);
  const auto product = [&] {
    Autocast guard(c10::DeviceType::CPU, at::kBFloat16);
    return torch::mm(torch::ones({2, 2}), weight).sum().item<double>();
  };
  DOCTEST_CHECK(product() == 8);
  {
    torch::NoGradGuard no_grad;
    weight.mul_(2);
  }
  DOCTEST_CHECK(product() == 16);
}

DOCTEST_TEST_CASE("without mixed precision the optimizer is handed on, and a step inside a guard is seen by the next") {
  TestTrainer trainer({.backend = "torch", .num_workers = 0});
  DOCTEST_CHECK(trainer->run([]() -> Json {
    OneWeight one;
    auto optimizer = train::torch::prepare_optimizer(one.sgd);
    auto guard = train::torch::autocast();
    train::torch::backward(one.weight.sum() * 0.5);
    optimizer.step();
    optimizer.zero_grad();
    torch::optim::StepLR scheduler(optimizer, 1, 0.5);  // takes the optimizer itself
    auto owned = train::torch::prepare_optimizer(torch::optim::SGD({one.weight}, 1.0));
    return {one.value(), type_of_product(), owned->param_groups().size(), train::torch::grad_scaler().state()};
  })[0] == Json::parse(R"([0.5,"Float",1,{}])"));

  DOCTEST_CHECK(trainer->run([]() -> Json {
    torch::nn::Linear layer(1, 1);
    torch::nn::init::constant_(layer->weight, 1);
    torch::nn::init::constant_(layer->bias, 1);
    torch::optim::SGD sgd(layer->parameters(), 1);
    auto whole = train::torch::accelerate(layer, sgd, {.mixed_precision = true});
    auto guard = train::torch::autocast();  // around several steps: the bias' cast would be stale
    Json losses = Json::array();
    for (int step = 0; step < 3; ++step)
      losses.push_back(whole.step([&] { return whole.model->forward(torch::zeros({1, 1})).sum(); }).item<double>());
    return losses;
  })[0] == Json::parse("[1.0,0.0,-1.0]"));
}

DOCTEST_TEST_CASE("bad settings of mixed precision are refused") {
  const auto refuses = [](auto body, troupe::ErrorCode code, const char* part) {
    TestTrainer trainer({.backend = "torch", .num_workers = 0});
    const auto error = error_of([&] { trainer->run(body); });
    DOCTEST_CAPTURE(error.text);
    DOCTEST_CHECK(error.code == code);
    DOCTEST_CHECK(error.says(part));
  };
  const auto option = troupe::ErrorCode::invalid_option;
  using train::torch::accelerate;
  refuses([] { accelerate({.amp = true, .dtype = at::kInt}); }, option, "at::kHalf");
  refuses([] { GradScaler scaler({.init_scale = 0}); }, option, "init_scale = 0");
  refuses([] { GradScaler scaler({.growth_factor = 1}); }, option, "above 1");
  refuses([] { GradScaler scaler({.backoff_factor = 1}); }, option, "between 0 and 1");
  refuses([] { GradScaler scaler({.growth_interval = 0}); }, option, "growth_interval = 0");
  refuses([] { GradScaler().load_state({{"scale", -1}}); }, troupe::ErrorCode::invalid_argument, "\"scale\"");
  refuses([] { GradScaler().load_state(nullptr); }, troupe::ErrorCode::invalid_argument, "\"scale\"");
  refuses(
      [] {
        OneWeight one;
        auto optimizer = train::torch::prepare_optimizer(one.sgd);
        accelerate({.amp = true});
      },
      troupe::ErrorCode::invalid_state, "before prepare_optimizer()");
  if (has_half)
    refuses(
        [] {
          accelerate({.amp = true, .dtype = at::kHalf});
          auto layer = train::torch::prepare_model(torch::nn::Linear(1, 1), {.check_gradients = true});
          train::torch::backward(layer->forward(torch::ones({1, 1})).sum());
        },
        option, "check_gradients = true is refused with half precision");
  refuses(
      [] {
        accelerate({.amp = true});
        OneWeight one;
        train::torch::prepare_optimizer(one.sgd).step([] { return torch::ones({}); });
      },
      troupe::ErrorCode::invalid_state, "closure");
  DOCTEST_CHECK(error_of([] { accelerate({}); }).code == troupe::ErrorCode::not_in_worker);
}
