// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>
#include <troupe/torch_grad_scaler.hpp>

#include <cmath>
#include <map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/torch_collectives.hpp>
#include <troupe/torch_model.hpp>

#include "backends/torch/torch_compat.hpp"
#include "backends/torch/torch_group.hpp"

namespace troupe::train::torch {
namespace {

void require(bool good, const char* option, double value, const char* valid) {
  if (!good)
    throw Error(ErrorCode::invalid_option,
                fmt::format("GradScalerOptions.{} = {} is refused; valid: {}", option, value, valid));
}

/// What the state holds under `key`; throws invalid_argument unless it is a number above `above`.
double number_of(const Json& state, const char* key, double above) {
  const auto found = state.is_object() ? state.find(key) : state.end();
  if (found == state.end() || !found->is_number() || !(found->get<double>() > above) ||
      !std::isfinite(found->get<double>()))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the scaler's state is refused: it needs \"{}\", a number above {}; it is {}", key, above,
                            state.dump(-1, ' ', true, Json::error_handler_t::replace)));
  return found->get<double>();
}

/// Multiplies all gradients of the optimizer; true if one of them is infinite or not a number.
bool scale_gradients(::torch::optim::Optimizer& optimizer, double factor) {
  c10::NoGradGuard no_grad;
  std::map<std::pair<c10::DeviceType, at::ScalarType>, std::vector<at::Tensor>> kinds;
  std::unordered_set<const c10::TensorImpl*> seen;  // parameters() names those of a shared module twice
  for (auto& group : optimizer.param_groups())
    for (auto& parameter : group.params()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (gradient.is_sparse()) gradient = gradient.coalesce();  // values of equal indices may sum up to infinity
      const auto values = gradient.is_sparse() ? gradient._values() : gradient;
      kinds[{values.device().type(), values.scalar_type()}].push_back(values);
    }
  bool found = false;
  for (const auto& [kind, gradients] : kinds) found = torch_compat::scale_and_check(gradients, factor) || found;
  return found;
}

bool on_any_worker(bool value) {
  const auto group = TorchGroup::find();
  if (!group || group->size() == 1) return value;
  return all_reduce(at::full({1}, value ? 1.0F : 0.0F, at::TensorOptions(get_device()))).item<float>() != 0;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(options.init_scale), scale_of_gradients_(scale_) {
  require(std::isfinite(options.init_scale) && options.init_scale > 0, "init_scale", options.init_scale, "above 0");
  require(std::isfinite(options.growth_factor) && options.growth_factor > 1, "growth_factor", options.growth_factor,
          "above 1");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor", options.backoff_factor,
          "between 0 and 1");
  require(options.growth_interval > 0, "growth_interval", static_cast<double>(options.growth_interval), "above 0");
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  expect_gradients();
  // As a float tensor: a half precision loss becomes a float, and the product does not overflow.
  return loss * at::full({}, scale_, loss.options().dtype(at::kFloat).requires_grad(false));
}

void GradScaler::expect_gradients() {
  scale_of_gradients_ = scale_;
  has_new_gradients_ = true;
  if (std::exchange(behind_step_, false)) {
    found_inf_ = false;
    unscaled_.clear();  // of steps that were unscaled and left out
  }
}

void GradScaler::unscale(::torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  if (unscaled_.contains(&optimizer))
    throw Error(ErrorCode::invalid_state,
                "unscale() was called twice for one step: the gradients would be divided by the scale again. Behind a "
                "step that was left out, call the prepared optimizer's zero_grad(), or update() of the scaler");
  const bool found_inf = on_any_worker(scale_gradients(optimizer, 1 / scale_of_gradients_));
  unscaled_[&optimizer] = found_inf;
  found_inf_ = found_inf_ || found_inf;  // also if the step is left out
  has_new_gradients_ = false;
}

bool GradScaler::step(::torch::optim::Optimizer& optimizer) {
  if (options_.enabled) {
    if (!unscaled_.contains(&optimizer)) unscale(optimizer);
    if (unscaled_.extract(&optimizer).mapped()) return false;
  }
  optimizer.step();
  return true;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  unscaled_.clear();  // of steps that were unscaled and left out
  adapt();
  found_inf_ = false;
  behind_step_ = false;
}

void GradScaler::update_behind_step() {
  if (!options_.enabled) return;
  // Other optimizers may have unscaled their gradients already, and step later.
  if (std::exchange(behind_step_, true)) {
    scale_ = scale_before_;
    good_steps_ = good_steps_before_;
  }
  scale_before_ = scale_;
  good_steps_before_ = good_steps_;
  adapt();
}

void GradScaler::leave_out(const ::torch::optim::Optimizer& optimizer) {
  if (unscaled_.erase(&optimizer) > 0 && !has_new_gradients_) update_behind_step();
}

void GradScaler::adapt() {
  if (found_inf_) {
    scale_ *= options_.backoff_factor;
    good_steps_ = 0;
  } else if (++good_steps_ == options_.growth_interval) {
    good_steps_ = 0;
    // As in PyTorch, where the scale is a float: it does not grow out of that.
    if (std::isfinite(static_cast<float>(scale_ * options_.growth_factor))) scale_ *= options_.growth_factor;
  }
}

Json GradScaler::state() const {
  if (!options_.enabled) return Json::object();
  return {{"scale", scale_},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", options_.growth_interval},
          {"growth_tracker", good_steps_}};
}

void GradScaler::load_state(const Json& state) {
  if (!options_.enabled) return;
  GradScalerOptions options = options_;
  options.init_scale = number_of(state, "scale", 0);
  options.growth_factor = number_of(state, "growth_factor", 1);
  options.backoff_factor = number_of(state, "backoff_factor", 0);
  options.growth_interval = static_cast<std::int64_t>(number_of(state, "growth_interval", 0));
  const auto good_steps = static_cast<std::int64_t>(number_of(state, "growth_tracker", -1));
  *this = GradScaler(options);
  good_steps_ = good_steps;
}

}  // namespace troupe::train::torch
