// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/recoverable_parts.hpp"

#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <tuple>

#include <troupe/error.hpp>
#include <troupe/torch_sampler.hpp>
#include <troupe/train.hpp>

#include "backends/torch/optimizer_state.hpp"
#include "checkpoint/crc32c.hpp"

namespace troupe::train::torch::detail {
namespace {

/// Says whether a tensor was written to: its address, and how often it was.
using Mark = std::pair<const c10::TensorImpl*, std::uint32_t>;

Mark mark_of(const at::Tensor& tensor) {
  return {tensor.unsafeGetTensorImpl(), static_cast<std::uint32_t>(tensor._version())};
}

constexpr std::size_t sampled_block = 4096;
constexpr std::size_t sampled_blocks = 16;

bool is_sampled_whole(const at::Tensor& tensor) { return tensor.nbytes() <= sampled_block * sampled_blocks; }

/// Calls visit(bytes, size) for a sample of the values, in pieces of whole values.
template <class Visit>
void visit_sample(const at::Tensor& tensor, Visit&& visit) {
  const auto values = tensor.detach().cpu().contiguous();
  const auto* bytes = static_cast<const std::byte*>(values.data_ptr());
  const auto size = values.nbytes();
  if (is_sampled_whole(values)) return visit(bytes, size);
  const auto stride = (size - sampled_block) / (sampled_blocks - 1) / values.itemsize() * values.itemsize();
  for (std::size_t i = 0; i < sampled_blocks; ++i) visit(bytes + i * stride, sampled_block);
}

/// A checksum of a sample of the values, after `previous`.
std::uint32_t digest_of(const at::Tensor& tensor, std::uint32_t previous) {
  visit_sample(tensor, [&](const std::byte* bytes, std::size_t size) {
    previous = ::troupe::detail::crc32c(bytes, size, previous);
  });
  return previous;
}

at::Tensor sample_of(const at::Tensor& tensor) {
  std::vector<at::Tensor> pieces;
  visit_sample(tensor, [&](const std::byte* bytes, std::size_t size) {
    const auto count = static_cast<std::int64_t>(size / tensor.itemsize());
    pieces.push_back(at::from_blob(const_cast<std::byte*>(bytes), {count}, tensor.scalar_type()).clone());
  });
  return at::cat(pieces);
}

/// Whether a step of plain SGD with the present gradient changes the sample. It need not: a batch that uses few rows of
/// a table changes only those, and a change may be too small for the type.
bool would_show(const at::Tensor& parameter, const ::torch::optim::SGDOptions& options) {
  const auto& gradient = parameter.grad();
  if (!gradient.defined() || gradient.is_sparse()) return false;
  const auto before = sample_of(parameter);
  const auto direction = sample_of(gradient) + before * options.weight_decay();
  return !at::equal(before - direction * options.lr(), before);
}

class ModelPart : public RecoverablePart {
public:
  explicit ModelPart(std::shared_ptr<::torch::nn::Module> module) : module_(std::move(module)) {
    if (!module_) throw Error(ErrorCode::invalid_argument, "Recoverable was given an empty model");
  }

  CheckpointItem state() const override { return train::torch::state_dict(*module_); }
  void load(const CheckpointItem& state) override { train::torch::load_state_dict(*module_, state); }

  void keep() override {
    at::NoGradGuard no_grad;
    marks_ = marks();
    const auto buffers = module_->buffers();
    buffers_.resize(buffers.size());
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (buffers_[i].defined() && buffers_[i].sizes() == buffers[i].sizes())
        buffers_[i].copy_(buffers[i]);
      else
        buffers_[i] = buffers[i].clone();
  }

  void restore() override {
    at::NoGradGuard no_grad;
    auto buffers = module_->buffers();
    for (std::size_t i = 0; i < std::min(buffers.size(), buffers_.size()); ++i) buffers[i].copy_(buffers_[i]);
    for (auto& parameter : module_->parameters()) parameter.mutable_grad() = at::Tensor();
  }

  bool touched() const override { return marks_ != marks(); }

  std::uint32_t digest(std::uint32_t previous) const override {
    for (const auto& parameter : module_->parameters()) previous = digest_of(parameter, previous);
    return previous;
  }

private:
  std::vector<Mark> marks() const {
    std::vector<Mark> found;
    for (const auto& parameter : module_->parameters()) found.push_back(mark_of(parameter));
    return found;
  }

  std::shared_ptr<::torch::nn::Module> module_;
  std::vector<Mark> marks_;
  std::vector<at::Tensor> buffers_;
};

class OptimizerPart : public RecoverablePart {
public:
  explicit OptimizerPart(::torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
    train::torch::state_dict(optimizer_);  // of a kind whose state can be taken, or it says so now
  }

  CheckpointItem state() const override { return train::torch::state_dict(optimizer_); }
  void load(const CheckpointItem& state) override { train::torch::load_state_dict(optimizer_, state); }

  void keep() override {
    marks_ = marks();
    options_.clear();
    for (const auto& group : optimizer_.param_groups()) options_.push_back(group.options().clone());
  }
  void restore() override {
    auto& groups = optimizer_.param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (i < options_.size()) groups[i].set_options(options_[i]->clone());
      for (auto& parameter : groups[i].params()) parameter.mutable_grad() = at::Tensor();
    }
  }
  bool touched() const override { return marks_ != marks(); }
  bool is_blind(const std::set<const at::TensorImpl*>& not_stepped) const override {
    // A step writes all parameters, so one that shows it is enough. Without gradients there is no telling: they may
    // have been zeroed behind it.
    bool has_unseen = false;
    bool shows = false;
    for_each_without_trace([&](const at::Tensor& parameter, const ::torch::optim::SGDOptions& options) {
      const bool frozen = !parameter.requires_grad() && !parameter.grad().defined();
      if (frozen || not_stepped.contains(parameter.unsafeGetTensorImpl())) return;
      has_unseen = has_unseen || !is_sampled_whole(parameter);
      shows = shows || would_show(parameter, options);
    });
    return has_unseen && !shows;
  }

private:
  /// SGD writes past the count of writes, and without momentum it remembers nothing that would tell.
  template <class Visit>
  void for_each_without_trace(Visit&& visit) const {
    if (dynamic_cast<const ::torch::optim::SGD*>(&optimizer_) == nullptr) return;
    for (const auto& group : optimizer_.param_groups()) {
      const auto& options = static_cast<const ::torch::optim::SGDOptions&>(group.options());
      if (options.momentum() != 0) continue;
      for (const auto& parameter : group.params()) visit(parameter, options);
    }
  }

  /// Of the parameters too: they need not be in a model that is named.
  std::vector<Mark> marks() const {
    std::vector<Mark> found;
    for (const auto& group : optimizer_.param_groups())
      for (const auto& parameter : group.params()) found.push_back(mark_of(parameter));
    for_each_state_tensor(optimizer_, [&](const at::Tensor& tensor) { found.push_back(mark_of(tensor)); });
    for_each_without_trace(
        [&](const at::Tensor& parameter, const auto&) { found.emplace_back(nullptr, digest_of(parameter, 0)); });
    return found;
  }

  ::torch::optim::Optimizer& optimizer_;
  std::vector<Mark> marks_;
  std::vector<std::unique_ptr<::torch::optim::OptimizerOptions>> options_;  // learning rates, say
};

class JsonPart : public RecoverablePart {
public:
  JsonPart(std::function<Json()> get, std::function<void(const Json&)> set)
      : get_(std::move(get)), set_(std::move(set)) {}

  CheckpointItem state() const override { return CheckpointItem::of_json(get_()); }
  void load(const CheckpointItem& state) override { set_(state.as<Json>()); }
  void keep() override { kept_ = get_(); }
  void restore() override { set_(kept_); }

private:
  std::function<Json()> get_;
  std::function<void(const Json&)> set_;
  Json kept_;
};

class SamplerPart : public RecoverablePart {
public:
  explicit SamplerPart(DistributedSampler& sampler) : sampler_(sampler) {}

  CheckpointItem state() const override { return CheckpointItem::of_json(sampler_.state()); }
  void load(const CheckpointItem& state) override { sampler_.load_state(state.as<Json>()); }
  void keep() override { kept_ = sampler_.state(); }
  void restore() override { sampler_.go_on_at(kept_); }
  void rejoined(ElasticBatch /*batch*/) override { sampler_.reshard(world_size(), world_rank()); }

private:
  DistributedSampler& sampler_;
  Json kept_;
};

class TensorPart : public RecoverablePart {
public:
  explicit TensorPart(at::Tensor& tensor) : tensor_(tensor) {}

  CheckpointItem state() const override { return tensor_.detach(); }
  void load(const CheckpointItem& state) override { assign(state.as<at::Tensor>()); }
  void keep() override { kept_ = tensor_.detach().clone(); }
  void restore() override { assign(kept_); }

private:
  /// In place where it fits: others may share its memory.
  void assign(const at::Tensor& value) {
    at::NoGradGuard no_grad;
    if (tensor_.sizes() == value.sizes() && tensor_.scalar_type() == value.scalar_type())
      tensor_.copy_(value);
    else
      tensor_ = value.to(tensor_.device(), /*non_blocking=*/false, /*copy=*/true);
  }

  at::Tensor& tensor_;
  at::Tensor kept_;
};

class LoaderPart : public RecoverablePart {
public:
  explicit LoaderPart(LoaderCore& loader) : loader_(loader), global_batch_(loader.global_batch()) {}

  CheckpointItem state() const override {
    return CheckpointItem::of_json({{"position", loader_.state()}, {"global_batch", global_batch_}});
  }
  void load(const CheckpointItem& state) override {
    const auto json = state.as<Json>();
    if (!json.is_object() || !json.contains("position") || !json.contains("global_batch") ||
        !json["global_batch"].is_number_integer() || json["global_batch"] < 1)
      throw Error(ErrorCode::invalid_argument, "the loader's part of the state is not what a Recoverable saved");
    loader_.load_state(json["position"]);
    global_batch_ = json["global_batch"];
  }
  void keep() override { kept_ = loader_.state(); }
  void restore() override { loader_.go_on_at(kept_); }
  void rejoined(ElasticBatch batch) override {
    loader_.reshard(batch == ElasticBatch::keep_global ? std::optional(global_batch_) : std::nullopt);
    if (batch == ElasticBatch::keep_per_worker) global_batch_ = loader_.global_batch();
  }
  std::optional<std::int64_t> epoch() const override { return loader_.state().at("epoch").get<std::int64_t>(); }

private:
  LoaderCore& loader_;
  std::int64_t global_batch_;
  Json kept_;
};

}  // namespace

RecoverablePartPtr recoverable_model(std::shared_ptr<::torch::nn::Module> module) {
  return std::make_shared<ModelPart>(std::move(module));
}
RecoverablePartPtr recoverable_optimizer(::torch::optim::Optimizer& optimizer) {
  return std::make_shared<OptimizerPart>(optimizer);
}
RecoverablePartPtr recoverable_loader(LoaderCore& loader) { return std::make_shared<LoaderPart>(loader); }
RecoverablePartPtr recoverable_tensor(at::Tensor& tensor) {
  if (!tensor.defined())
    throw Error(ErrorCode::invalid_argument, "Recoverable was given an empty tensor: make it first, torch::zeros(...)");
  return std::make_shared<TensorPart>(tensor);
}
RecoverablePartPtr recoverable_sampler(DistributedSampler& sampler) { return std::make_shared<SamplerPart>(sampler); }
RecoverablePartPtr recoverable_json(std::function<Json()> get, std::function<void(const Json&)> set) {
  return std::make_shared<JsonPart>(std::move(get), std::move(set));
}

}  // namespace troupe::train::torch::detail
