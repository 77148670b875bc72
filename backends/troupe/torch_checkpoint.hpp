// SPDX-License-Identifier: Apache-2.0
// Tensors, models and optimizers in checkpoints:
//   train::save_checkpoint({{"model", train::torch::state_dict(model)}, {"opt",
//   train::torch::state_dict(optimizer)}});
//   train::torch::load_state_dict(model, checkpoint["model"]);
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <memory>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>
#include <troupe/torch_model.hpp>

namespace torch::optim {
class Optimizer;
}

namespace troupe::train::torch {

/// The tensor as a checkpoint holds it. Shares the memory of a contiguous
/// tensor on the CPU, which nobody may change as long as the result is in use;
/// others are copied. Throws invalid_argument for sparse and quantized tensors.
::troupe::TensorData to_tensor_data(const at::Tensor& tensor);
/// A tensor of its own on the CPU; bytes from a file are checked while they are
/// copied (io when they do not verify).
at::Tensor to_tensor(const ::troupe::TensorData& data);
/// The same without a copy: for reading alone. The memory may be a file's, and
/// writing to it ends the program.
at::Tensor view_of(const ::troupe::TensorData& data);

/// Parameters and buffers by name ("0.weight"), as Python's. They share the
/// model's memory: save_checkpoint() copies them, but a state that is kept
/// while training goes on changes with the model.
Checkpoint state_dict(const ::torch::nn::Module& module);

/// What load_state_dict() did not find where the other side had it.
struct IncompatibleKeys {
  std::vector<std::string> missing_keys;     ///< the model has them, the state has not
  std::vector<std::string> unexpected_keys;  ///< the state has them, the model has not
};

/// Copies the state into the model's parameters and buffers, also into those of
/// a prepared model; optimizers stay valid. Other number types are converted.
/// Names that all begin with "module." (Python's DistributedDataParallel) are
/// taken without it. Throws invalid_argument that lists all missing and
/// unexpected names and all wrong shapes, and leaves the model as it was; with
/// `strict` = false only wrong shapes are refused.
IncompatibleKeys load_state_dict(::torch::nn::Module& module, const CheckpointItem& state, bool strict = true);

/// Options of each group and what the optimizer remembers of each parameter, in
/// the form of Python's state_dict(). Knows SGD, Adam, AdamW, RMSprop and
/// Adagrad; throws invalid_argument for others.
Checkpoint state_dict(const ::torch::optim::Optimizer& optimizer);
/// Training goes on with the same bits. The optimizer must be of the same kind,
/// with as many parameters in each group; throws invalid_argument otherwise and
/// leaves it as it was.
void load_state_dict(::torch::optim::Optimizer& optimizer, const CheckpointItem& state);

/// Where a device's random numbers stand; in thread placement those of the CPU
/// are common to all ranks.
at::Tensor rng_state(c10::Device device = c10::kCPU);
/// Throws invalid_argument for a tensor that rng_state() did not give.
void set_rng_state(const at::Tensor& state, c10::Device device = c10::kCPU);

/// Module holders, Sequential and shared pointers to modules.
template <class Model>
concept ModelHandle = requires(const Model& model) {
  { model.ptr() } -> std::convertible_to<std::shared_ptr<::torch::nn::Module>>;
} || (requires { typename Model::element_type; } && std::convertible_to<Model, std::shared_ptr<::torch::nn::Module>>);

template <ModelHandle Model>
Checkpoint state_dict(const Model& model) {
  return state_dict(*detail::module_of(model));
}
template <ModelHandle Model>
IncompatibleKeys load_state_dict(const Model& model, const CheckpointItem& state, bool strict = true) {
  return load_state_dict(*detail::module_of(model), state, strict);
}

}  // namespace troupe::train::torch

/// `checkpoint.at<at::Tensor>("w")` and tensors between the braces of a
/// checkpoint.
template <>
struct troupe::CheckpointTraits<at::Tensor> {
  static CheckpointItem to_item(const at::Tensor& tensor) {
    return CheckpointItem::of_tensor(train::torch::to_tensor_data(tensor));
  }
  static at::Tensor from_item(const CheckpointItem& item) { return train::torch::to_tensor(item.as<TensorData>()); }
};
