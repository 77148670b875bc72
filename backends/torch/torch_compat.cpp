// SPDX-License-Identifier: Apache-2.0
// Here rather than in the header: ATen/autocast_mode.h costs 10 s a file.
#include "backends/torch/torch_compat.hpp"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/graph_task.h>

namespace troupe::torch_compat {

#if TROUPE_TORCH_VERSION >= 200
int current_backward() { return ::torch::autograd::get_current_graph_task_id(); }
#else
int current_backward() { return 0; }
#endif

#if TROUPE_TORCH_VERSION >= 204
AutocastState get_autocast(c10::DeviceType device) {
  return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}

static void set_autocast(c10::DeviceType device, AutocastState state) {
  at::autocast::set_autocast_enabled(device, state.enabled);
  at::autocast::set_autocast_dtype(device, state.dtype);
}
#else
AutocastState get_autocast(c10::DeviceType device) {
  if (device == c10::DeviceType::CPU) return {at::autocast::is_cpu_enabled(), at::autocast::get_autocast_cpu_dtype()};
  return {at::autocast::is_enabled(), at::autocast::get_autocast_gpu_dtype()};
}

static void set_autocast(c10::DeviceType device, AutocastState state) {
  if (device == c10::DeviceType::CPU) {
    at::autocast::set_cpu_enabled(state.enabled);
    at::autocast::set_autocast_cpu_dtype(state.dtype);
  } else {
    at::autocast::set_enabled(state.enabled);
    at::autocast::set_autocast_gpu_dtype(state.dtype);
  }
}
#endif

void enter_autocast(c10::DeviceType device, AutocastState state) {
  at::autocast::increment_nesting();
  set_autocast(device, state);
}

void leave_autocast(c10::DeviceType device, AutocastState previous) {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set_autocast(device, previous);
}

void clear_autocast_cache() { at::autocast::clear_cache(); }

bool scale_and_check(const std::vector<at::Tensor>& tensors, double factor) {
  const auto device = tensors.front().device();
#if TROUPE_TORCH_VERSION < 200
  if (device.is_cpu()) {
    bool found = false;
    for (auto tensor : tensors) {
      tensor.mul_(factor);
      found = found || !at::isfinite(tensor).all().item<bool>();
    }
    return found;
  }
#endif
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  auto found = at::zeros({1}, options);
  at::_amp_foreach_non_finite_check_and_unscale_(tensors, found, at::full({1}, factor, options));
  return found.item<float>() != 0;
}

}  // namespace troupe::torch_compat
