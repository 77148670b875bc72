// SPDX-License-Identifier: Apache-2.0
// Data-parallel models: the same type comes back, gradients are averaged over all workers inside backward().
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

namespace torch::nn {
class Module;
}

namespace troupe {
class Reducer;
}

namespace troupe::train::torch {

/// A piece of the model's gradients, flat. Buckets come in the same order on every worker.
struct GradientBucket {
  at::Tensor values;                    ///< this worker's before a CommHook, the mean over all workers after it
  std::size_t index = 0;                ///< of the bucket
  std::vector<std::string> parameters;  ///< whose gradients these are, one after the other
};

/// How a bucket of gradients is averaged over all workers.
class CommHook {
public:
  enum BuiltIn {
    none,  ///< as it is
    bf16,  ///< sent as bfloat16: half the bytes, 8 bits of precision
    fp16,  ///< sent as half: half the bytes, 11 bits of precision, values up to 65504
  };
  CommHook(BuiltIn built_in = none) : built_in_(built_in) {}
  /// Your own, `void(GradientBucket&)`: leaves the mean over all workers in `values`, with operations of the group
  /// (all_reduce(), ...), which it may use freely. Runs at the end of backward(), for one bucket at a time, model by
  /// model in the order of their preparation, so that all workers are at the same one.
  template <std::invocable<GradientBucket&> Function>
  CommHook(Function call) : function_(std::move(call)) {}

  BuiltIn built_in() const { return built_in_; }
  const std::function<void(GradientBucket&)>& function() const { return function_; }

private:
  BuiltIn built_in_ = none;
  std::function<void(GradientBucket&)> function_;
};

struct PrepareModelOptions {
  /// A parameter that got no gradient on this rank counts as zero; otherwise backward() throws and names it.
  bool find_unused_parameters = false;
  /// Gradients are exchanged in pieces of about this size, each as soon as it is complete; 0: 4 MB, on GPUs 25 MB.
  std::size_t bucket_bytes = 0;
  /// Every backward() that averages gradients also gives all workers rank 0's buffers (running means, say).
  bool broadcast_buffers = true;
  /// backward() throws on every worker when a gradient is infinite or not a number on one of them, and names both.
  /// Costs a pass over the gradients.
  bool check_gradients = false;
  /// CommHook::bf16, CommHook::fp16 or your own function.
  CommHook comm_hook = {};
  /// False: the model stays on the device where it is, which must be that of the group.
  bool move_to_device = true;
  /// False: backward() leaves gradients alone, for a loop that averages them itself. (Ray's name; nothing is wrapped.)
  bool wrap_ddp = true;
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

/// Moves the model to get_device(), compares names, types and shapes across workers (a mismatch throws with both
/// lists), gives every worker rank 0's parameters and buffers, and makes backward() average gradients. Takes a module
/// holder, a Sequential or a shared_ptr and returns it; optimizers made before stay valid. A second call replaces the
/// first. With one worker gradients are left alone.
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
  std::shared_ptr<Reducer> reducer_;
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

struct ClipOptions {
  double norm_type = 2;  ///< infinity: the largest magnitude
  /// Throws when the norm is infinite or not a number, and names the parameters; otherwise gradients become so too.
  bool error_if_nonfinite = false;
};

/// Scales all gradients so that their norm, taken as one vector, is at most `max_norm`; gives the norm before. After a
/// backward() that averaged them, every worker gets the same bits.
double clip_grad_norm(const std::shared_ptr<::torch::nn::Module>& module, double max_norm,
                      const ClipOptions& options = {});
template <class Model>
double clip_grad_norm(const Model& model, double max_norm, const ClipOptions& options = {}) {
  return clip_grad_norm(detail::module_of(model), max_norm, options);
}

struct JoinOptions {
  /// What the sum of gradients is divided by: all workers, or those that still have data.
  bool divide_by_initial_world_size = true;
  /// Runs on a worker without data after each backward() of the others that averages, whose gradients it then has:
  /// `[&] { optimizer.step(); }` keeps the optimizer's state equal on all workers, and must be given in half precision.
  /// So a step has one such backward(); those before it, which accumulate, run under no_sync().
  std::function<void()> step = {};
};

namespace detail {
class JoinScope {
public:
  JoinScope(const std::shared_ptr<::torch::nn::Module>& module, const JoinOptions& options);
  ~JoinScope();
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;
  void finish();

private:
  std::shared_ptr<::torch::nn::Module> module_;
  std::shared_ptr<Reducer> reducer_;
  const JoinOptions& options_;
};
}  // namespace detail

/// Runs `body`, a loop over this worker's batches, where workers may have unequally many: one that is through takes
/// part in the others' backward() with zeros until all are. In the end all have the parameters and buffers of a worker
/// that made the last step. No other prepared model is trained or joined inside: make one module of both.
template <class Model, std::invocable Body>
void join(const Model& model, Body&& body, const JoinOptions& options = {}) {
  detail::JoinScope scope(detail::module_of(model), options);
  std::forward<Body>(body)();
  scope.finish();
}

}  // namespace troupe::train::torch
