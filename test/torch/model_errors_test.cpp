// SPDX-License-Identifier: Apache-2.0
// What happens to prepared models when something is wrong or unusual: a clear error, or nothing at all.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "test/torch/model_support.hpp"

namespace train = troupe::train;
namespace nn = torch::nn;
using namespace troupe::test;
using troupe::Config;
using troupe::Json;

namespace {

nn::Linear small_layer() {
  nn::Linear layer(3, 2);
  fill(*layer);
  return layer;
}

void step(nn::Linear& layer) { layer->forward(waves({4, 3}, train::world_rank())).square().sum().backward(); }

/// What small_layer() has after one step() on `ranks` ranks.
Values averaged_gradients(int ranks) {
  auto layer = small_layer();
  auto loss = torch::zeros({});
  for (int rank = 0; rank < ranks; ++rank) loss = loss + layer->forward(waves({4, 3}, rank)).square().sum() / ranks;
  loss.backward();
  return gradients_of(*layer);
}

/// Regions that this process shares with others of its group.
int mapped_memory() {
  int regions = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) regions += line.find("memfd:troupe") != std::string::npos ? 1 : 0;
  return regions;
}

/// The average is right on both ranks.
void check_average(const std::vector<Json>& results) {
  DOCTEST_REQUIRE(results.size() == 2);
  DOCTEST_CHECK(results[0] == results[1]);
  DOCTEST_CHECK(largest_difference(results[0].get<Values>(), averaged_gradients(2)) < 1e-5);
}

}  // namespace

DOCTEST_TEST_CASE("two prepared models that train the same parameter are refused with its name") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  const auto results = trainer->run([]() -> Json {
    auto shared = small_layer();
    nn::Sequential one(shared, small_layer());
    nn::Sequential other(shared);
    train::torch::prepare_model(one);
    Json texts = {error_of([&] { train::torch::prepare_model(other); }).text};
    train::torch::prepare_model(one);  // once more is no harm
    one = nullptr;
    train::torch::prepare_model(other);  // nobody else trains it now
    return texts;
  });
  for (const auto& texts : results)
    DOCTEST_CHECK(texts[0].get<std::string>().find("parameter 0.weight is trained by another model") == 0);
}

DOCTEST_TEST_CASE("a parameter that was frozen when its first model was prepared may be trained by a second one") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  const auto results = trainer->run([]() -> Json {
    auto shared = small_layer();
    auto trained = small_layer();
    nn::Sequential one(shared, trained);
    nn::Sequential other(shared);
    for (auto& parameter : shared->parameters()) parameter.requires_grad_(false);
    train::torch::prepare_model(one);
    for (auto& parameter : shared->parameters()) parameter.requires_grad_(true);
    train::torch::prepare_model(other);
    (other->forward(torch::ones({1, 3})) * (1 + train::world_rank())).sum().backward();
    const auto bias = values_of(shared->bias.grad());
    // In a backward() of the first model, too, it is the second one that averages it.
    (trained->forward(torch::ones({1, 3})) + shared->forward(torch::ones({1, 3}))).sum().backward();
    return bias;
  });
  for (const auto& gradient : results) DOCTEST_CHECK(gradient == Json(Values(gradient.size(), 1.5)));
}

DOCTEST_TEST_CASE("a loss that is not a number on one rank shows in the norm, and an option names parameter and rank") {
  const auto body = [](const Config& config) -> Json {
    auto layer = train::torch::prepare_model(small_layer(), {.check_gradients = config["check"].get<bool>()});
    auto loss = layer->forward(torch::ones({1, 3})).sum();
    if (train::world_rank() == 1) loss = loss * NAN;
    std::string error;
    try {
      loss.backward();
      if (config["strict"].get<bool>())
        train::torch::clip_grad_norm(layer, 1.0, {.error_if_nonfinite = true});
      else if (!std::isnan(train::torch::clip_grad_norm(layer, 1.0)))
        error = "the norm is a number";
    } catch (const troupe::Error& caught) {
      error = caught.what();
    }
    // All ranks know, so all can leave this batch out.
    layer->zero_grad();
    step(layer);
    return {error, gradients_of(*layer)};
  };
  const auto quiet = run_on(2, true, body, {{"check", false}, {"strict", false}});
  const auto strict = run_on(2, true, body, {{"check", false}, {"strict", true}});
  const auto checked = run_on(2, true, body, {{"check", true}, {"strict", false}});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    DOCTEST_CHECK(quiet[rank][0] == "");
    DOCTEST_CHECK(strict[rank][0].get<std::string>().find("weight, bias") != std::string::npos);
    DOCTEST_CHECK(checked[rank][0].get<std::string>().find("weight on rank 1, bias on rank 1") != std::string::npos);
    for (const auto& results : {quiet, strict, checked})
      DOCTEST_CHECK(largest_difference(results[rank][1].get<Values>(), averaged_gradients(2)) < 1e-5);
  }
}

DOCTEST_TEST_CASE("unusual but legal uses of a prepared model give the average all the same") {
  on_both_placements([](troupe::Placement placement) {
    // Forward without backward, on one rank only; and a gradient that is computed on another thread.
    check_average(run_on(
        2, true,
        []() -> Json {
          auto layer = train::torch::prepare_model(small_layer());
          if (train::world_rank() == 0) layer->forward(torch::ones({1, 3}));
          std::thread([&, rank = train::context()] {
            train::ContextGuard guard(rank);
            step(layer);
          }).join();
          return gradients_of(*layer);
        },
        Json::object(), placement));
    // Prepared twice: one average, not two.
    check_average(run_on(
        2, true,
        []() -> Json {
          auto layer = train::torch::prepare_model(train::torch::prepare_model(small_layer()));
          step(layer);
          return gradients_of(*layer);
        },
        Json::object(), placement));
  });
}

DOCTEST_TEST_CASE("a report inside no_sync is delivered, and guards may be nested") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  auto recorder = std::make_shared<Recorder>();
  const auto results = trainer->run(
      []() -> Json {
        auto layer = train::torch::prepare_model(small_layer());
        {
          auto outer = train::torch::no_sync(layer);
          {
            auto inner = train::torch::no_sync(layer);
          }
          step(layer);
          train::report({{"rank", train::world_rank()}});
        }
        const auto own = gradients_of(*layer);
        layer->zero_grad();
        step(layer);
        return {own, gradients_of(*layer)};
      },
      {.callbacks = {recorder}});
  DOCTEST_REQUIRE(recorder->rounds.size() == 1);
  DOCTEST_CHECK(recorder->rounds[0][1]["rank"] == 1);
  DOCTEST_CHECK(results[0][0] != results[1][0]);
  check_average({results[0][1], results[1][1]});
}

DOCTEST_TEST_CASE("two losses over one graph add up, and second derivatives come from autograd::grad") {
  const auto results = run_on(2, true, []() -> Json {
    auto layer = train::torch::prepare_model(small_layer());
    auto half = layer->forward(waves({4, 3}, train::world_rank())).square().sum() / 2;
    half.backward({}, /*retain_graph=*/true);
    half.backward();
    const auto twice = gradients_of(*layer);
    // The gradient's norm as a loss: autograd::grad() leaves the parameters' gradients alone.
    layer->zero_grad();
    auto loss = layer->forward(waves({4, 3}, train::world_rank())).square().sum();
    torch::autograd::grad({loss}, {layer->weight}, {}, true, true)[0].square().sum().backward();
    const auto second = values_of(layer->weight.grad());
    std::string error;
    try {
      layer->forward(torch::ones({1, 3})).square().sum().backward({}, true, /*create_graph=*/true);
    } catch (const troupe::Error& caught) {
      error = caught.what();
    }
    return {twice, second, error};
  });
  check_average({results[0][0], results[1][0]});
  DOCTEST_CHECK(results[0][1] == results[1][1]);
  for (const auto& result : results)
    DOCTEST_CHECK(result[2].get<std::string>().find("autograd::grad()") != std::string::npos);
}

DOCTEST_TEST_CASE("parameters frozen before or after prepare_model are left alone") {
  const auto results = run_on(2, true, []() -> Json {
    auto none = small_layer();
    for (auto& parameter : none->parameters()) parameter.requires_grad_(false);
    none = train::torch::prepare_model(none);
    auto layer = train::torch::prepare_model(small_layer());
    step(layer);
    const auto bias = values_of(layer->bias.grad());
    layer->bias.requires_grad_(false);
    layer->weight.mutable_grad() = at::Tensor();
    step(layer);
    return {parameters_of(*none), gradients_of(*layer), bias == values_of(layer->bias.grad())};
  });
  DOCTEST_CHECK(results[0][0].get<Values>() == parameters_of(*small_layer()));
  DOCTEST_CHECK(results[0][2] == true);
  check_average({results[0][1], results[1][1]});
}

DOCTEST_TEST_CASE(
    "a parameter that is unfrozen after prepare_model is named, and averaged once the model is prepared again") {
  const auto results = run_on(2, true, []() -> Json {
    auto layer = small_layer();
    layer->bias.requires_grad_(false);
    layer = train::torch::prepare_model(layer);
    step(layer);
    layer->bias.requires_grad_(true);
    const auto error = error_of([&] { step(layer); });
    if (layer->weight.grad().defined()) throw std::runtime_error("others can still change the gradient");
    layer->zero_grad();
    layer = train::torch::prepare_model(layer);
    step(layer);
    return {error.text, gradients_of(*layer)};
  });
  for (const auto& result : results) {
    const auto text = result[0].get<std::string>();
    DOCTEST_CAPTURE(text);
    DOCTEST_CHECK(text.find("averaged: bias. Call prepare_model() again") != std::string::npos);
  }
  check_average({results[0][1], results[1][1]});
}

DOCTEST_TEST_CASE("parameters that are frozen on one rank only, and options that differ, are refused") {
  const auto frozen = error_of([] {
    run_on(2, true, [] {
      auto layer = small_layer();
      if (train::world_rank() == 1) layer->bias.requires_grad_(false);
      train::torch::prepare_model(layer);
    });
  });
  DOCTEST_CHECK(frozen.says("frozen parameter bias"));
  const auto options = error_of([] {
    run_on(2, true,
           [] { train::torch::prepare_model(small_layer(), {.find_unused_parameters = train::world_rank() == 1}); });
  });
  DOCTEST_CHECK(options.says("find_unused_parameters true"));
}

DOCTEST_TEST_CASE("models may end before or after their group, and after the run") {
  on_both_placements([](troupe::Placement placement) {
    TestTrainer trainer({.backend = "torch", .num_workers = 2, .placement = placement});
    for (int start = 0; start < 2; ++start) {
      for (int run = 0; run < 2; ++run)
        check_average(trainer->run([]() -> Json {
          static thread_local std::vector<nn::Linear> kept;
          auto brief = train::torch::prepare_model(small_layer());
          step(brief);
          kept.push_back(train::torch::prepare_model(small_layer()));
          step(kept.back());
          return gradients_of(*kept.back());
        }));
      trainer->shutdown();
    }
  });
}

DOCTEST_TEST_CASE("a model that outlives its group trains alone, and the memory of the group is gone") {
  for (bool shared_memory : {true, false}) {
    DOCTEST_CAPTURE(shared_memory);
    TestTrainer trainer({.backend = troupe::TorchConfig{.shared_memory = shared_memory},
                         .num_workers = 2,
                         .resources_per_worker = {{"CPU", 1}}});
    const auto results = trainer->run(
        [](const Config& config) -> Json {
          static nn::Linear kept = small_layer();  // outlives the attempt in the worker that survives
          static bool lost = false;
          const auto rank = train::world_rank();
          if (is_first(config["folder"].get<std::string>(), "rank" + std::to_string(rank))) {
            kept = train::torch::prepare_model(kept);
            const auto gone = train::torch::prepare_model(nn::Linear(30, 20));
            lost = true;
            step(kept);
            train::torch::barrier();
            if (rank == 1) ::kill(::getpid(), SIGKILL);
            for (;;) train::torch::barrier();
          }
          for (auto& parameter : kept->parameters()) parameter.mutable_grad() = torch::Tensor();
          const auto mapped = mapped_memory();
          step(kept);
          return {lost, mapped, gradients_of(*kept)};
        },
        {.config = {{"folder", trainer.folder().string()}}});
    DOCTEST_CHECK(results[0][0] == true);
    DOCTEST_CHECK(results[0][1] == results[1][1].get<int>());  // rank 1 is new and has never had a group's memory
    for (int rank = 0; rank < 2; ++rank) {
      auto alone = small_layer();
      alone->forward(waves({4, 3}, rank)).square().sum().backward();
      const auto found = results[static_cast<std::size_t>(rank)][2].get<Values>();
      DOCTEST_CHECK(largest_difference(found, gradients_of(*alone)) < 1e-5);
    }
  }
}

DOCTEST_TEST_CASE("bad arguments of clip_grad_norm, join and prepare_model are refused") {
  const auto results = run_on(2, true, []() -> Json {
    Json errors = Json::array();
    const auto note = [&](auto&& call) {
      try {
        call();
        errors.push_back("nothing");
      } catch (const troupe::Error& error) {
        errors.push_back(error.what());
      }
    };
    auto layer = small_layer();
    note([&] { train::torch::clip_grad_norm(layer, -1.0); });
    note([&] { train::torch::clip_grad_norm(layer, NAN); });
    note([&] { train::torch::join(layer, [] {}); });
    note([&] { train::torch::prepare_model(std::shared_ptr<nn::LinearImpl>()); });
    errors.push_back(train::torch::clip_grad_norm(layer, 1.0));
    auto waves = std::make_shared<nn::Module>();
    waves->register_parameter("phase", torch::ones({2}, torch::kComplexFloat));
    note([&] { train::torch::prepare_model(waves); });
    return errors;
  });
  for (const auto& errors : results) {
    DOCTEST_CHECK(errors[0].get<std::string>().find("above 0") != std::string::npos);
    DOCTEST_CHECK(errors[1].get<std::string>().find("above 0") != std::string::npos);
    DOCTEST_CHECK(errors[2].get<std::string>().find("prepare_model()") != std::string::npos);
    DOCTEST_CHECK(errors[3].get<std::string>().find("empty model") != std::string::npos);
    DOCTEST_CHECK(errors[4] == 0.0);
    DOCTEST_CHECK(errors[5].get<std::string>().find("parameter phase is complex") != std::string::npos);
  }
}

DOCTEST_TEST_CASE("a join inside a join, and another model trained inside one, are refused with what to do") {
  const auto results = run_on(2, troupe::TorchConfig{.timeout_s = 20}, []() -> Json {
    auto one = train::torch::prepare_model(small_layer());
    auto other = train::torch::prepare_model(small_layer());
    Json texts = Json::array();
    train::torch::join(one, [&] {
      texts.push_back(error_of([&] { train::torch::join(one, [] {}); }).text);
      texts.push_back(error_of([&] { train::torch::join(other, [] {}); }).text);
      texts.push_back(error_of([&] { step(other); }).text);
    });
    other->zero_grad();
    train::torch::join(other, [&] { step(other); });
    return {texts, gradients_of(*other)};
  });
  for (const auto& result : results)
    for (const auto& text : result[0]) {
      DOCTEST_CAPTURE(text);
      DOCTEST_CHECK(text.get<std::string>().find("make one module of both") != std::string::npos);
    }
  check_average({results[0][1], results[1][1]});
}

DOCTEST_TEST_CASE("a model that is prepared again inside its join is refused, and afterwards not") {
  check_average(run_on(2, troupe::TorchConfig{.timeout_s = 20}, []() -> Json {
    auto layer = train::torch::prepare_model(small_layer());
    train::torch::join(layer, [&] {
      const auto refused = error_of([&] { train::torch::prepare_model(layer); });
      if (!refused.says("inside the join() of the same model")) throw std::runtime_error(refused.text);
    });
    layer = train::torch::prepare_model(layer);
    train::torch::join(layer, [&] { step(layer); });
    return gradients_of(*layer);
  }));
}

DOCTEST_TEST_CASE("a backward that failed on its way is not used again before prepare_model is called again") {
  const auto results = run_on(2, true, []() -> Json {
    auto layer = train::torch::prepare_model(small_layer());
    std::string first;
    std::string second;
    const auto error_text = [&](auto&& call) {
      try {
        call();
        return std::string("nothing");
      } catch (const troupe::Error& error) {
        return std::string(error.what());
      }
    };
    // No gradient for the bias.
    first = error_text([&] { layer->weight.sum().backward(); });
    second = error_text([&] { step(layer); });
    layer->zero_grad();
    layer = train::torch::prepare_model(layer);
    step(layer);
    return {first, second, gradients_of(*layer)};
  });
  for (const auto& result : results) {
    DOCTEST_CHECK(result[0].get<std::string>().find("no gradient in backward(): bias") != std::string::npos);
    DOCTEST_CHECK(result[1].get<std::string>().find("failed on its way") != std::string::npos);
  }
  check_average({results[0][2], results[1][2]});
}

DOCTEST_TEST_CASE("a rank that dies inside backward frees the others with GroupLost, and the same model trains again") {
  for (bool shared_memory : {true, false}) {
    DOCTEST_CAPTURE(shared_memory);
    TestTrainer trainer({.backend = troupe::TorchConfig{.shared_memory = shared_memory}, .num_workers = 2});
    const auto results = trainer->run(
        [](const Config& config) -> Json {
          static nn::Linear layer = small_layer();  // outlives the attempt in the worker that survives
          static bool lost = false;
          layer->zero_grad();
          layer = train::torch::prepare_model(layer);
          const bool first =
              is_first(config["folder"].get<std::string>(), "rank" + std::to_string(train::world_rank()));
          auto output = layer->forward(waves({4, 3}, train::world_rank())).square().sum();
          // Not before rank 0 has left prepare_model().
          const auto ready = std::filesystem::path(config["folder"].get<std::string>()) / "rank 0 is ready";
          if (train::world_rank() == 0) std::ofstream{ready};
          if (first && train::world_rank() == 1)
            output.register_hook([ready](const at::Tensor&) {
              while (!std::filesystem::exists(ready)) std::this_thread::yield();
              ::kill(::getpid(), SIGKILL);
            });
          try {
            output.backward();
          } catch (const troupe::GroupLost&) {
            lost = true;
            throw;
          }
          return {lost, gradients_of(*layer)};
        },
        {.config = {{"folder", trainer.folder().string()}}});
    DOCTEST_CHECK(results[0][0] == true);
    DOCTEST_CHECK(results[1][0] == false);
    check_average({results[0][1], results[1][1]});
  }
}
