// SPDX-License-Identifier: Apache-2.0
// Data-parallel models: the same type comes back, gradients are averaged over all workers inside backward().
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include <c10/core/Device.h>

namespace torch::nn {
class Module;
}

namespace troupe::train::torch {

struct PrepareModelOptions {
  /// A parameter that got no gradient on this rank counts as zero; otherwise backward() throws and names it.
  bool find_unused_parameters = false;
  /// Gradients are exchanged in pieces of about this size, each as soon as it is complete.
  std::size_t bucket_bytes = std::size_t{4} << 20;
};

/// The device this worker computes on.
c10::Device get_device();

namespace detail {
void prepare_module(const std::shared_ptr<::torch::nn::Module>& module, const PrepareModelOptions& options);

template <class Model>
std::shared_ptr<::torch::nn::Module> module_of(const Model& model) {
  if constexpr (requires { model.ptr(); })
    return model.ptr();
  else
    return model;
}
}  // namespace detail

/// Compares names, types and shapes across workers (a mismatch throws with both lists), gives every worker rank 0's
/// parameters and buffers, and makes backward() average gradients. Takes a module holder, a Sequential or a shared_ptr
/// and returns it; optimizers made before stay valid. With one worker nothing is done.
template <class Model>
Model prepare_model(Model model, const PrepareModelOptions& options = {}) {
  detail::prepare_module(detail::module_of(model), options);
  return model;
}

/// While it lives, backward() accumulates gradients on this rank alone; the first backward() after it averages all.
class NoSync {
public:
  explicit NoSync(const std::shared_ptr<::torch::nn::Module>& module);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

private:
  std::shared_ptr<::torch::nn::Module> module_;
};

template <class Model>
NoSync no_sync(const Model& model) {
  return NoSync(detail::module_of(model));
}

/// Gives every worker rank 0's buffers (running means, say) again. Collective.
void broadcast_buffers(const std::shared_ptr<::torch::nn::Module>& module);
template <class Model>
void broadcast_buffers(const Model& model) {
  broadcast_buffers(detail::module_of(model));
}

}  // namespace troupe::train::torch
