// SPDX-License-Identifier: Apache-2.0
// Training from creators, as the first RaySGD had it: functions that make model, data, optimizer and loss on each
// worker. The loop is written here.
//
//   Net model_creator(const troupe::Json& config);
//   train::torch::PassData<tt::TensorPair> data_creator(const troupe::Json& config);   // .train, .validation
//   std::unique_ptr<torch::optim::Optimizer> optimizer_creator(Net& model, const troupe::Json& config);
//   at::Tensor loss(const at::Tensor& output, const at::Tensor& target);
//   troupe::PyTorchTrainer trainer(
//       train::torch::creators<model_creator, data_creator, optimizer_creator, loss>(), {.num_replicas = 2});
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include <troupe/json.hpp>
#include <troupe/torch_collectives.hpp>
#include <troupe/torch_recoverable.hpp>
#include <troupe/train.hpp>
#include <troupe/training_pass.hpp>

namespace troupe::train::torch {

/// What a data creator gives: data sets or tensors in memory, as prepare_data_loader() takes them.
template <class Data>
struct PassData {
  Data train;
  Data validation;
};
template <class Data>
PassData(Data, Data) -> PassData<Data>;

namespace detail {

/// Of all workers together; each takes its part.
inline std::int64_t share_of_batch(const Json& settings) {
  return std::max<std::int64_t>(1, settings.at("batch_size").get<std::int64_t>() / world_size());
}

/// A worker whose value is not a number is left out.
inline double mean_over_workers(const at::Tensor& value) {
  const auto mine = value.detach().to(at::kDouble).reshape({});
  const auto counts = at::logical_not(at::isnan(mine));
  const auto sums = all_reduce(at::stack({at::where(counts, mine, at::zeros_like(mine)), counts.to(at::kDouble)}));
  return (sums[0] / sums[1]).item<double>();
}

template <auto ModelCreator, auto DataCreator, auto OptimizerCreator, auto Loss>
Json train_one_pass(const Json& settings) {
  const auto& config = settings.at("config");
  auto model = ModelCreator(config);
  auto optimizer = OptimizerCreator(model, config);
  model = prepare_model(model);
  auto loader =
      prepare_data_loader(DataCreator(config).train, {.batch_size = share_of_batch(settings), .shuffle = true});
  double losses = 0;
  std::int64_t batches = 0;
  Recoverable state({.model = model,
                     .optimizer = *optimizer,
                     .loader = loader,
                     .values = {{"losses", losses}, {"batches", batches}},
                     .batch = ElasticBatch::keep_global});
  state.resume();
  const auto epoch = settings.at("pass").get<std::int64_t>();
  if (loader.epoch() == epoch) {  // else an earlier attempt has done it, and died behind its last save
    losses = 0;
    batches = 0;
  }
  for (auto step : state.epochs(epoch + 1))
    step.run([&] {
      auto& [inputs, targets] = loader.next();
      optimizer->zero_grad();
      const auto loss = Loss(model->forward(inputs), targets);
      loss.backward();
      losses += mean_over_workers(loss);  // before the optimizer: behind it nothing may wait for others
      batches += 1;
      optimizer->step();
    });
  save_checkpoint(state.checkpoint());
  return {{"epoch", epoch},
          {"batch_count", batches},
          {"train_loss", losses / static_cast<double>(std::max<std::int64_t>(1, batches))}};
}

template <auto ModelCreator, auto DataCreator, auto Loss>
Json validate_one_pass(const Json& settings) {
  const auto& config = settings.at("config");
  auto model = prepare_model(ModelCreator(config));
  if (const auto checkpoint = load_checkpoint()) load_state_dict(model, checkpoint->at("model"));
  auto loader = prepare_data_loader(DataCreator(config).validation, {.batch_size = share_of_batch(settings)});
  at::NoGradGuard no_grad;
  model->eval();
  // Samples that only fill a batch up do not count.
  double losses = 0;
  double samples = 0;
  for (auto& [inputs, targets] : loader) {
    const auto count = inputs.size(0) - static_cast<std::int64_t>(loader.padded());
    if (count == 0) continue;
    losses += Loss(model->forward(inputs.narrow(0, 0, count)), targets.narrow(0, 0, count)).template item<double>() *
              static_cast<double>(count);
    samples += static_cast<double>(count);
  }
  auto sums = at::full({2}, losses, at::kDouble);
  sums[1] = samples;
  sums = all_reduce(sums);
  return {{"num_samples", sums[1].template item<std::int64_t>()},
          {"validation_loss", sums[0].template item<double>() / sums[1].template item<double>()}};
}

}  // namespace detail

/// For PyTorchTrainer. A model creator gives a module holder, an optimizer creator a (unique) pointer.
template <auto ModelCreator, auto DataCreator, auto OptimizerCreator, auto Loss>
TrainingPass creators() {
  return {[](const Config& settings) -> Json {
            return detail::train_one_pass<ModelCreator, DataCreator, OptimizerCreator, Loss>(settings);
          },
          [](const Config& settings) -> Json {
            return detail::validate_one_pass<ModelCreator, DataCreator, Loss>(settings);
          }};
}

}  // namespace troupe::train::torch
