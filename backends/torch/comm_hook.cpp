// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/comm_hook.hpp"

#include <ATen/Functions.h>

#include <utility>

namespace troupe {
namespace {

using train::torch::CommHook;
using train::torch::GradientBucket;

/// Gradients in full precision on this rank, sent in a shorter type.
class CompressedBuffer : public ReduceBuffer {
public:
  CompressedBuffer(at::Tensor flat, std::unique_ptr<ReduceBuffer> sent)
      : flat_(std::move(flat)), sent_(std::move(sent)), short_(sent_->tensor()) {}

  at::Tensor tensor() const override { return flat_; }
  void start(double scale) override {
    // Scaled before it is shortened: a sum of halves could leave their range.
    flat_.mul_(scale);
    short_.copy_(flat_);
    sent_->start(1.0);
  }
  void poke() override { sent_->poke(); }
  void contribute() override { sent_->contribute(); }
  void finish() override {
    sent_->finish();
    flat_.copy_(short_);
  }

private:
  at::Tensor flat_;
  std::unique_ptr<ReduceBuffer> sent_;
  at::Tensor short_;
};

/// The user's function does it all, and where all ranks are at the same bucket of the same model: what it calls is
/// paired by its order.
class HookBuffer : public ReduceBuffer {
public:
  HookBuffer(std::function<void(GradientBucket&)> function, GradientBucket bucket, int ranks)
      : function_(std::move(function)), bucket_(std::move(bucket)), flat_(bucket_.values), ranks_(ranks) {}

  at::Tensor tensor() const override { return flat_; }
  void start(double scale) override {
    rest_ = scale * ranks_;
    waiting_ = true;
  }
  void poke() override {}
  void contribute() override {
    if (!std::exchange(waiting_, false)) return;
    function_(bucket_);
    // It may have put another tensor there.
    if (!bucket_.values.is_same(flat_)) flat_.copy_(std::exchange(bucket_.values, flat_));
    if (rest_ != 1.0) flat_.mul_(rest_);
  }
  void finish() override { contribute(); }

private:
  std::function<void(GradientBucket&)> function_;
  GradientBucket bucket_;
  at::Tensor flat_;
  int ranks_;
  double rest_ = 1;  // of the scale: the function leaves a mean
  bool waiting_ = false;
};

}  // namespace

std::unique_ptr<ReduceBuffer> make_gradient_buffer(Collective& collective, const CommHook& hook, std::int64_t elements,
                                                   const at::TensorOptions& options, GradientBucket bucket) {
  const auto type = c10::typeMetaToScalarType(options.dtype());
  if (hook.function()) {
    bucket.values = at::zeros({elements}, options);
    return std::make_unique<HookBuffer>(hook.function(), std::move(bucket), collective.size());
  }
  if (hook.built_in() != CommHook::none && (type == at::kFloat || type == at::kDouble))
    return std::make_unique<CompressedBuffer>(
        at::zeros({elements}, options),
        collective.make_buffer(elements, hook.built_in() == CommHook::bf16 ? at::kBFloat16 : at::kHalf));
  return collective.make_buffer(elements, type);
}

}  // namespace troupe
