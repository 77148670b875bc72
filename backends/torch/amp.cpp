// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <troupe/torch_amp.hpp>

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/prepared_models.hpp"
#include "backends/torch/torch_compat.hpp"
#include "runtime/session/session.hpp"

namespace troupe::train::torch {

/// A run's settings on this rank.
struct detail::Amp {
  std::weak_ptr<troupe::detail::Session> run;
  bool enabled = false;
  bool optimizer_prepared = false;
  c10::DeviceType device = c10::DeviceType::CPU;
  at::ScalarType dtype = at::kBFloat16;
  GradScalerOptions scaler_options{.enabled = false};
  GradScaler scaler{scaler_options};
};

namespace {

constexpr const char* rank_data_name = "torch.amp";

/// Those of the run that goes on; of an earlier one nothing is left.
std::shared_ptr<detail::Amp> current_amp(const char* caller) {
  const auto session = troupe::detail::Session::require(caller);
  auto amp = session->data().get<detail::Amp>(rank_data_name);
  if (!amp || amp->run.lock() != session) {
    amp = std::make_shared<detail::Amp>();
    amp->run = session;
    session->data().set(rank_data_name, amp);
  }
  return amp;
}

at::ScalarType dtype_of(const AccelerateOptions& options, c10::DeviceType device) {
  const bool cpu = device == c10::DeviceType::CPU;
  const auto dtype = options.dtype.value_or(cpu ? at::kBFloat16 : at::kHalf);
  if (dtype != at::kBFloat16 && dtype != at::kHalf)
    throw Error(
        ErrorCode::invalid_option,
        fmt::format("AccelerateOptions.dtype = {} is refused; valid: at::kBFloat16, at::kHalf", c10::toString(dtype)));
  if (cpu && dtype == at::kHalf && !torch_compat::has_half_on_cpu)
    throw Error(ErrorCode::invalid_option,
                "AccelerateOptions.dtype = at::kHalf is refused: this libtorch has no half precision on CPUs; use "
                "at::kBFloat16 or libtorch 2");
  return dtype;
}

}  // namespace

void accelerate(const AccelerateOptions& options) {
  auto amp = current_amp("accelerate()");
  const auto device = get_device().type();
  auto scaler_options = options.scaler;
  const bool enabled = options.amp || options.mixed_precision;
  const auto dtype = enabled ? dtype_of(options, device) : at::kBFloat16;
  scaler_options.enabled = enabled && dtype == at::kHalf && options.scaler.enabled;
  if (amp->optimizer_prepared) {
    // A second model and its optimizer, with the precision of the first.
    if (amp->enabled == enabled && amp->dtype == dtype && amp->scaler_options == scaler_options) return;
    throw Error(ErrorCode::invalid_state,
                "accelerate() comes too late: call it before prepare_optimizer(), which has to know the precision; all "
                "models of a run have the same");
  }
  amp->scaler = GradScaler(scaler_options);
  amp->scaler_options = scaler_options;
  amp->device = device;
  amp->dtype = dtype;
  amp->enabled = enabled;
}

Autocast autocast() {
  const auto amp = current_amp("autocast()");
  if (!amp->enabled) return Autocast();
  return Autocast(amp->device, amp->dtype);
}

void backward(const at::Tensor& loss) {
  const auto amp = current_amp("backward()");
  if (!amp->enabled) {
    loss.backward();
    return;
  }
  if (amp->scaler.enabled() && PreparedModels::instance().checks_gradients(amp->run.lock()->data()))
    throw Error(ErrorCode::invalid_option,
                "PrepareModelOptions.check_gradients = true is refused with half precision: scaled gradients overflow "
                "now and then, and the scaler leaves those steps out; use at::kBFloat16 to look for bad gradients");
  // Gradients are computed in the types that forward chose; casting once more would lose precision.
  const Autocast off(amp->device, amp->dtype, false);
  amp->scaler.scale(loss).backward();
}

void detail::expect_gradients() {
  if (const auto amp = current_amp("join()"); amp->enabled) amp->scaler.expect_gradients();
}

GradScaler& grad_scaler() { return current_amp("grad_scaler()")->scaler; }

std::shared_ptr<detail::Amp> detail::prepare_amp() {
  auto amp = current_amp("prepare_optimizer()");
  amp->optimizer_prepared = true;
  return amp->enabled ? amp : nullptr;
}

bool detail::step_with(Amp& amp, ::torch::optim::Optimizer& optimizer) {
  const bool made = amp.scaler.step(optimizer);
  amp.scaler.update_behind_step();
  torch_compat::clear_autocast_cache();  // casts of what the step has changed
  return made;
}

void detail::unscale_with(Amp& amp, ::torch::optim::Optimizer& optimizer) { amp.scaler.unscale(optimizer); }

void detail::leave_out_with(Amp& amp, ::torch::optim::Optimizer& optimizer) { amp.scaler.leave_out(optimizer); }

void detail::refuse_closure() {
  throw Error(ErrorCode::invalid_state,
              "step(closure) is refused in mixed precision: steps that compute the loss again cannot be scaled; call "
              "accelerate({.amp = false}) or use an optimizer without closures");
}

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled) : device_(device), active_(true) {
  const auto previous = torch_compat::get_autocast(device);
  previous_enabled_ = previous.enabled;
  previous_dtype_ = previous.dtype;
  torch_compat::enter_autocast(device, {enabled, dtype});
}

Autocast::~Autocast() {
  if (active_) torch_compat::leave_autocast(device_, {previous_enabled_, previous_dtype_});
}

}  // namespace troupe::train::torch
