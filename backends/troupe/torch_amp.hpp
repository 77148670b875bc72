// SPDX-License-Identifier: Apache-2.0
// Mixed precision: forward in bfloat16 or half precision, parameters in single precision. Off unless accelerate() turns
// it on; then the same loop runs either way:
//
//   train::torch::accelerate({.amp = true});
//   auto optimizer = train::torch::prepare_optimizer(sgd);
//   ...
//   optimizer.zero_grad();
//   auto autocast = train::torch::autocast();                  // until the end of its scope
//   auto loss = torch::nll_loss(model->forward(x), y);
//   train::torch::backward(loss);
//   optimizer.step();
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <troupe/torch_autocast.hpp>
#include <troupe/torch_grad_scaler.hpp>
#include <troupe/torch_model.hpp>

namespace troupe::train::torch {

struct AccelerateOptions {
  /// Mixed precision. On a CPU it saves time only if the CPU computes in bfloat16 (AVX512-BF16, AMX); else it costs
  /// some.
  bool amp = false;
  /// at::kBFloat16 or at::kHalf; by default half precision on GPUs, bfloat16 on CPUs. Half precision scales the loss.
  std::optional<at::ScalarType> dtype = std::nullopt;
  GradScalerOptions scaler = {};
  /// Another name of `amp`.
  bool mixed_precision = false;
};

/// Sets this worker's precision for the rest of the run; called before prepare_optimizer().
void accelerate(const AccelerateOptions& options);

/// Casts this thread's operations while the guard lives if accelerate() asked for it, otherwise does nothing.
Autocast autocast();

/// loss.backward(), with the loss scaled if that is needed. Never under autocast.
void backward(const at::Tensor& loss);

/// What scales the losses of this run; keep its state() with the model.
GradScaler& grad_scaler();

namespace detail {
/// The next gradients are all from other workers.
void expect_gradients();
struct Amp;
/// This run's settings if mixed precision is on, else null.
std::shared_ptr<Amp> prepare_amp();
/// Both true if the step was made.
bool step_with(Amp& amp, ::torch::optim::Optimizer& optimizer);
void unscale_with(Amp& amp, ::torch::optim::Optimizer& optimizer);
void leave_out_with(Amp& amp, ::torch::optim::Optimizer& optimizer);
[[noreturn]] void refuse_closure();
}  // namespace detail

/// Used like the optimizer it was made of. Without mixed precision it only hands calls on.
template <class Optimizer>
class PreparedOptimizer {
public:
  explicit PreparedOptimizer(std::shared_ptr<Optimizer> optimizer)
      : optimizer_(std::move(optimizer)), amp_(detail::prepare_amp()) {}

  /// In half precision: leaves the parameters alone if a gradient is infinite or not a number on any worker, and adapts
  /// the scale. Then collective.
  void step() {
    if (amp_)
      skipped_ = !detail::step_with(*amp_, *optimizer_);
    else
      optimizer_->step();
  }
  /// For optimizers that compute the loss several times. Refused in mixed precision.
  template <class Closure>
  at::Tensor step(Closure&& closure) {
    if (amp_) detail::refuse_closure();
    return optimizer_->step(std::forward<Closure>(closure));
  }
  template <class... Arguments>
  void zero_grad(Arguments&&... arguments) {
    if (amp_) detail::leave_out_with(*amp_, *optimizer_);
    optimizer_->zero_grad(std::forward<Arguments>(arguments)...);
  }

  /// Makes the gradients those of the loss itself; before clipping them, say. At most once a step; if you leave the
  /// step out then, the next zero_grad() adapts the scale.
  void unscale() {
    if (amp_) detail::unscale_with(*amp_, *optimizer_);
  }
  /// True if the last step() left the parameters alone.
  bool skipped() const { return skipped_; }

  Optimizer& operator*() const { return *optimizer_; }
  Optimizer* operator->() const { return optimizer_.get(); }
  /// For schedulers and whatever else takes the optimizer.
  operator Optimizer&() const { return *optimizer_; }

private:
  std::shared_ptr<Optimizer> optimizer_;
  std::shared_ptr<detail::Amp> amp_;
  bool skipped_ = false;
};

/// `optimizer` stays yours and must live as long as the result.
template <class Optimizer>
PreparedOptimizer<Optimizer> prepare_optimizer(Optimizer& optimizer) {
  return PreparedOptimizer<Optimizer>(std::shared_ptr<Optimizer>(std::shared_ptr<void>(), &optimizer));
}
template <class Optimizer>
  requires(!std::is_lvalue_reference_v<Optimizer>)
PreparedOptimizer<Optimizer> prepare_optimizer(Optimizer&& optimizer) {
  return PreparedOptimizer<Optimizer>(std::make_shared<Optimizer>(std::forward<Optimizer>(optimizer)));
}
template <class Optimizer>
PreparedOptimizer<Optimizer> prepare_optimizer(std::shared_ptr<Optimizer> optimizer) {
  return PreparedOptimizer<Optimizer>(std::move(optimizer));
}

/// What accelerate(model, optimizer, ...) gives: `auto [model, optimizer] = ...`, or whole steps.
template <class Model, class Optimizer>
struct Accelerated {
  Model model;
  PreparedOptimizer<Optimizer> optimizer;

  /// One step of training: `loss_of()` gives the loss. Returns it.
  template <class LossOf>
  at::Tensor step(LossOf&& loss_of) {
    optimizer.zero_grad();
    auto loss = [&] {
      const auto guard = autocast();
      return loss_of();
    }();
    backward(loss);
    optimizer.step();
    return loss.detach();
  }
};

/// All in one: accelerate(), prepare_model() and prepare_optimizer().
template <class Model, class Optimizer>
auto accelerate(Model model, Optimizer&& optimizer, const AccelerateOptions& options,
                const PrepareModelOptions& model_options = {}) {
  accelerate(options);
  auto prepared = prepare_optimizer(std::forward<Optimizer>(optimizer));
  using Prepared = std::remove_reference_t<decltype(*prepared)>;
  return Accelerated<Model, Prepared>{prepare_model(std::move(model), model_options), std::move(prepared)};
}

}  // namespace troupe::train::torch
