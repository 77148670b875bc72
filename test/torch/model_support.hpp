// SPDX-License-Identifier: Apache-2.0
// What the tests of prepare_model() share.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "test/integration/support.hpp"

namespace troupe::test {

using Values = std::vector<double>;

inline Values values_of(const at::Tensor& tensor) {
  const auto flat = tensor.detach().cpu().to(::torch::kDouble).contiguous().flatten();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

/// All parameters, one after the other.
inline Values parameters_of(const ::torch::nn::Module& module) {
  Values values;
  for (const auto& parameter : module.parameters()) {
    const auto more = values_of(parameter);
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

/// All gradients, one after the other.
inline Values gradients_of(const ::torch::nn::Module& module) {
  Values values;
  for (const auto& parameter : module.parameters()) {
    const auto more = values_of(parameter.grad().is_sparse() ? parameter.grad().to_dense() : parameter.grad());
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

/// The same values on every rank and in every run, whatever state the generator of the process is in.
inline void fill(::torch::nn::Module& module) {
  at::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : module.parameters()) {
    const auto count = parameter.numel();
    parameter.copy_((::torch::arange(count, ::torch::kDouble) * 0.7 + ++phase).sin().view(parameter.sizes()) * 0.4);
  }
}

/// A prepared one has several buckets of 128 bytes.
inline ::torch::nn::Sequential small_net() {
  namespace nn = ::torch::nn;
  nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 2));
  fill(*net);
  return net;
}

/// As fill(), for data.
inline at::Tensor waves(at::IntArrayRef shape, double phase) {
  std::int64_t count = 1;
  for (auto one : shape) count *= one;
  return (::torch::arange(count, ::torch::kDouble) * 1.3 + phase).sin().view(shape).to(::torch::kFloat);
}

inline double largest_difference(const Values& a, const Values& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// Runs a function on `workers` ranks.
template <class Function>
std::vector<Json> run_on(int workers, const TorchConfig& backend, Function&& function, Json config = Json::object(),
                         Placement placement = Placement::process) {
  TestTrainer trainer(
      {.backend = backend, .num_workers = workers, .resources_per_worker = {{"CPU", 1}}, .placement = placement});
  return trainer->run(std::forward<Function>(function), {.config = std::move(config)});
}

/// On ranks that share memory, or talk over Gloo.
template <class Function>
std::vector<Json> run_on(int workers, bool shared_memory, Function&& function, Json config = Json::object(),
                         Placement placement = Placement::process) {
  return run_on(workers, TorchConfig{.timeout_s = 30, .shared_memory = shared_memory}, std::forward<Function>(function),
                std::move(config), placement);
}

}  // namespace troupe::test
