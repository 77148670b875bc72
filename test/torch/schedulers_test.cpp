// SPDX-License-Identifier: Apache-2.0
// The expected numbers are those of PyTorch 2.15's schedulers.
#include <torch/torch.h>
#include <troupe/torch_schedulers.hpp>

#include <cmath>

#include "test/integration/support.hpp"

using namespace troupe::test;
using namespace troupe::train::torch;
using troupe::Json;
using Rates = std::vector<double>;

namespace {

torch::optim::SGD make_sgd() { return torch::optim::SGD({torch::zeros({1})}, torch::optim::SGDOptions(0.1)); }

double rate_of(torch::optim::Optimizer& optimizer) { return optimizer.param_groups()[0].options().get_lr(); }

double momentum_of(torch::optim::SGD& optimizer) {
  return static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).momentum();
}

/// The rates of an optimizer from the making of the scheduler on.
template <class Make>
Rates rates_of(Make make, std::size_t steps, const std::function<double(torch::optim::SGD&)>& read = rate_of) {
  auto optimizer = make_sgd();
  auto scheduler = make(optimizer);
  Rates rates = {read(optimizer)};
  for (std::size_t step = 1; step < steps; ++step) {
    scheduler.step();
    rates.push_back(read(optimizer));
  }
  return rates;
}

void check_equal(const Rates& rates, const Rates& expected) {
  DOCTEST_REQUIRE(rates.size() == expected.size());
  for (std::size_t step = 0; step < rates.size(); ++step) {
    DOCTEST_CAPTURE(step);
    DOCTEST_CHECK(std::abs(rates[step] - expected[step]) < 1e-11);
  }
}

}  // namespace

DOCTEST_TEST_CASE("cosine annealing, linear warm-up and a chain of both give the rates of PyTorch") {
  check_equal(rates_of([](auto& optimizer) { return CosineAnnealingLR(optimizer, {.t_max = 5, .eta_min = 0.01}); }, 9),
              {0.1, 0.0914057647469, 0.0689057647469, 0.0410942352531, 0.0185942352531, 0.01, 0.0185942352531,
               0.0410942352531, 0.0689057647469});
  check_equal(
      rates_of([](auto& optimizer) { return LinearLR(optimizer, {.start_factor = 0.25, .total_iters = 4}); }, 7),
      {0.025, 0.04375, 0.0625, 0.08125, 0.1, 0.1, 0.1});
  check_equal(rates_of(
                  [](auto& optimizer) {
                    return SequentialLR(
                        optimizer, {linear({.start_factor = 0.25, .total_iters = 3}), cosine_annealing({.t_max = 4})},
                        {3});
                  },
                  9),
              {0.025, 0.05, 0.075, 0.1, 0.0853553390593, 0.05, 0.0146446609407, 0.0, 0.0146446609407});
}

DOCTEST_TEST_CASE("OneCycle gives the rates and momenta of PyTorch, and ends with its steps") {
  const auto make = [](auto& optimizer) { return OneCycleLR(optimizer, {.max_lr = 1, .total_steps = 10}); };
  check_equal(rates_of(make, 10), {0.04, 0.52, 1.0, 0.950484632013, 0.81174565395, 0.611262021936, 0.388741978064,
                                   0.18825834605, 0.0495193679865, 4e-06});
  check_equal(rates_of(make, 10, momentum_of), {0.95, 0.9, 0.85, 0.854951556605, 0.868825509907, 0.888873953302,
                                                0.911126046698, 0.931174490093, 0.945048443395, 0.95});
  const auto three = [](auto& optimizer) {
    return OneCycleLR(optimizer, {.max_lr = 1, .total_steps = 10, .anneal_strategy = "linear", .three_phase = true});
  };
  check_equal(rates_of(three, 10), {0.04, 0.52, 1.0, 0.52, 0.04, 0.0320008, 0.0240016, 0.0160024, 0.0080032, 4e-06});
  check_equal(rates_of(three, 10, momentum_of), {0.95, 0.9, 0.85, 0.9, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95});
  // The step() behind the last batch is fine, one more is a mistake in the count.
  DOCTEST_CHECK(std::abs(rates_of(make, 11).back() - 4e-06) < 1e-12);
  DOCTEST_CHECK(error_of([&] { (void)rates_of(make, 12); }).says("total_steps = 10"));

  torch::optim::AdamW adam({torch::zeros({1})}, torch::optim::AdamWOptions(0.1).betas({0.9, 0.98}));
  OneCycleLR scheduler(adam, {.max_lr = 1, .total_steps = 10});
  scheduler.step();
  const auto betas = static_cast<torch::optim::AdamWOptions&>(adam.param_groups()[0].options()).betas();
  DOCTEST_CHECK(std::get<0>(betas) == doctest::Approx(0.9));
  DOCTEST_CHECK(std::get<1>(betas) == 0.98);
}

DOCTEST_TEST_CASE("a scheduler goes on from its state to the bit, in every parameter group") {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (double rate : {0.5, 0.02})
    groups.emplace_back(std::vector<torch::Tensor>{torch::zeros({1})},
                        std::make_unique<torch::optim::SGDOptions>(rate));
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.1));
  CosineAnnealingLR scheduler(optimizer, {.t_max = 7});
  for (int step = 0; step < 3; ++step) scheduler.step();
  const auto state = Json::parse(scheduler.state().dump());
  DOCTEST_CHECK(state == Json{{"step", 3}, {"base_lrs", {0.5, 0.02}}});

  // As after a restart: the optimizer's present rates come from a checkpoint, and are not those it was made with.
  torch::optim::SGD again(groups, torch::optim::SGDOptions(0.1));
  for (auto& group : again.param_groups()) group.options().set_lr(0.001);
  CosineAnnealingLR resumed(again, {.t_max = 7});
  resumed.load_state(state);
  DOCTEST_CHECK(resumed.get_last_lr() == scheduler.get_last_lr());
  resumed.step();
  scheduler.step();
  DOCTEST_CHECK(resumed.get_last_lr() == scheduler.get_last_lr());
  DOCTEST_CHECK(resumed.get_last_lr()[0] == doctest::Approx(0.5 * (1 + std::cos(M_PI * 4 / 7)) / 2));
}

DOCTEST_TEST_CASE("bad schedules and states are refused with the valid ones") {
  auto optimizer = make_sgd();
  const auto refuses = [](troupe::ErrorCode code, const char* part, auto&& body) {
    const auto error = error_of(body);
    DOCTEST_CAPTURE(error.text);
    DOCTEST_CHECK(error.code == code);
    DOCTEST_CHECK(error.says(part));
  };
  const auto option = troupe::ErrorCode::invalid_option;
  refuses(option, "t_max = 0", [&] { CosineAnnealingLR(optimizer, {}); });
  refuses(option, "start_factor = 0", [&] { LinearLR(optimizer, {.start_factor = 0}); });
  refuses(option, "total_iters = 0", [&] { LinearLR(optimizer, {.total_iters = 0}); });
  refuses(option, "max_lr = 0", [&] { OneCycleLR(optimizer, {.total_steps = 3}); });
  refuses(option, "total_steps = 0", [&] { OneCycleLR(optimizer, {.max_lr = 1}); });
  refuses(option, "\"cos\", \"linear\"",
          [&] { OneCycleLR(optimizer, {.max_lr = 1, .total_steps = 3, .anneal_strategy = "sine"}); });
  refuses(option, "0 to 1", [&] { OneCycleLR(optimizer, {.max_lr = 1, .total_steps = 3, .pct_start = 2}); });
  refuses(option, "1 milestones", [&] { SequentialLR(optimizer, {linear({}), linear({})}, {}); });
  refuses(option, "above the one before",
          [&] { SequentialLR(optimizer, {linear({}), linear({}), linear({})}, {4, 4}); });
  torch::optim::Adagrad adagrad({torch::zeros({1})}, torch::optim::AdagradOptions(0.1));
  refuses(option, "no momentum", [&] { OneCycleLR(adagrad, {.max_lr = 1, .total_steps = 3}); });

  CosineAnnealingLR scheduler(optimizer, {.t_max = 3});
  const auto before = scheduler.state();
  const auto argument = troupe::ErrorCode::invalid_argument;
  for (const char* text : {"null", "[]", "{}", R"({"step":-1,"base_lrs":[0.1]})", R"({"step":1.5,"base_lrs":[0.1]})",
                           R"({"step":1,"base_lrs":[0.1,0.2]})", R"({"step":1,"base_lrs":["a"]})"})
    refuses(argument, "state is refused", [&] { scheduler.load_state(Json::parse(text)); });
  DOCTEST_CHECK(scheduler.state() == before);
}
