// SPDX-License-Identifier: Apache-2.0
// Modules that work over all workers.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace troupe::train::torch {

/// Batch normalization over the batches of all workers, which may have unequally many samples, even none. Takes inputs
/// (N, C) or (N, C, ...), so it stands for BatchNorm1d, 2d and 3d; parameters and buffers have their names. In
/// training, forward() and backward() are collective: every worker calls them. In eval(), and where there is no group
/// of workers, it is a BatchNorm.
class SyncBatchNormImpl : public ::torch::nn::Cloneable<SyncBatchNormImpl> {
public:
  explicit SyncBatchNormImpl(std::int64_t num_features)
      : SyncBatchNormImpl(::torch::nn::BatchNormOptions(num_features)) {}
  explicit SyncBatchNormImpl(const ::torch::nn::BatchNormOptions& batch_norm_options);

  void reset() override;
  void reset_parameters();
  void reset_running_stats();
  void pretty_print(std::ostream& stream) const override;
  at::Tensor forward(const at::Tensor& input);

  ::torch::nn::BatchNormOptions options;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor num_batches_tracked;

private:
  double next_momentum();
};

/// Holds one, as the modules of libtorch are held.
class SyncBatchNorm : public ::torch::nn::ModuleHolder<SyncBatchNormImpl> {
public:
  using ::torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
  using Impl = SyncBatchNormImpl;
};

}  // namespace troupe::train::torch
