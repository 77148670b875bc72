// SPDX-License-Identifier: Apache-2.0
// Gradients of half precision losses are scaled, since small ones would be zero. The scale grows while that goes well
// and shrinks when a gradient becomes infinite; such a step is left out, on all workers or on none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

#include <troupe/json.hpp>

namespace torch::optim {
class Optimizer;
}

namespace troupe::train::torch {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  /// False: losses and gradients stay as they are.
  bool enabled = true;

  bool operator==(const GradScalerOptions&) const = default;
};

/// What PyTorch's torch.amp.GradScaler does. With prepare_optimizer() and backward() you need not call it; by itself:
///   scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update();
class GradScaler {
public:
  /// Throws invalid_option for values that cannot work.
  explicit GradScaler(const GradScalerOptions& options = {});

  bool enabled() const { return options_.enabled; }
  /// The loss times the present scale.
  at::Tensor scale(const at::Tensor& loss);
  /// In place of scale(), on a worker whose gradients are all from the others.
  void expect_gradients();
  /// Divides the optimizer's gradients by the scale of the last scale(), and looks for infinite ones on all workers
  /// (collective). step() does it unless it was done: call it only to clip the gradients in between.
  void unscale(::torch::optim::Optimizer& optimizer);
  /// optimizer.step(), unless a gradient is infinite or not a number. True if the step was made. Collective.
  bool step(::torch::optim::Optimizer& optimizer);
  /// Adapts the scale to what the steps since the last update() found.
  void update();
  /// In place of update(), behind each step(): those with the gradients of one scale() count as one, however many
  /// optimizers make them.
  void update_behind_step();
  /// The optimizer's gradients go unused. If they were unscaled, that counts as a step, as in update().
  void leave_out(const ::torch::optim::Optimizer& optimizer);

  double get_scale() const { return options_.enabled ? scale_ : 1; }
  /// The same on all workers. Empty if the scaler is not enabled, which also ignores what it is given.
  Json state() const;
  void load_state(const Json& state);

private:
  void adapt();

  GradScalerOptions options_;
  double scale_;
  double scale_of_gradients_;
  std::int64_t good_steps_ = 0;                                ///< since the scale changed
  bool has_new_gradients_ = false;                             ///< since the last unscale()
  bool behind_step_ = false;                                   ///< adapted, and no scale() since
  double scale_before_ = 0;                                    ///< it was adapted
  std::int64_t good_steps_before_ = 0;                         ///< likewise
  bool found_inf_ = false;                                     ///< since the last update()
  std::map<const ::torch::optim::Optimizer*, bool> unscaled_;  ///< true: its gradients are not finite
};

}  // namespace troupe::train::torch
