// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/reducer.hpp"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

namespace troupe {
namespace {

namespace autograd = ::torch::autograd;

class GradientHook : public autograd::FunctionPostHook {
public:
  explicit GradientHook(std::function<void()> call) : call_(std::move(call)) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs, const autograd::variable_list&) override {
    call_();
    return outputs;
  }

private:
  std::function<void()> call_;
};

}  // namespace

struct Reducer::Bucket {
  std::vector<std::size_t> parameters;
  std::unique_ptr<ReduceBuffer> buffer;
  std::size_t missing = 0;
};

/// The accumulators of the parameters: a tensor holds only a weak reference to its own.
struct Reducer::Hooks {
  using Accumulator = decltype(autograd::impl::grad_accumulator(std::declval<at::Tensor>()));
  std::vector<std::pair<Accumulator, std::uintptr_t>> entries;
};

Reducer::Reducer(std::shared_ptr<Collective> collective, std::vector<NamedParameter> parameters, ReducerOptions options)
    : collective_(std::move(collective)),
      parameters_(std::move(parameters)),
      options_(options),
      bucket_of_(parameters_.size()),
      slots_(parameters_.size()),
      hooks_(std::make_unique<Hooks>()),
      ready_(parameters_.size()) {
  make_buckets();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto accumulator = autograd::impl::grad_accumulator(parameters_[i].value);
    const auto key = accumulator->add_post_hook(std::make_unique<GradientHook>([this, i] { gradient_ready(i); }));
    hooks_->entries.emplace_back(std::move(accumulator), key);
  }
}

Reducer::~Reducer() {
  for (auto& [accumulator, key] : hooks_->entries) accumulator->del_post_hook(key);
}

/// Gradients become ready from the last layer to the first, and so are the buckets filled.
void Reducer::make_buckets() {
  std::size_t bytes = 0;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    const auto& value = parameters_[i].value;
    const auto limit = buckets_.size() <= 1 ? options_.first_bucket_bytes : options_.bucket_bytes;
    const bool fits = !buckets_.empty() && bytes + value.nbytes() <= limit &&
                      parameters_[buckets_.back()->parameters.front()].value.scalar_type() == value.scalar_type();
    if (!fits) {
      buckets_.push_back(std::make_unique<Bucket>());
      bytes = 0;
    }
    bytes += value.nbytes();
    bucket_of_[i] = buckets_.size() - 1;
    buckets_.back()->parameters.push_back(i);
  }
  for (auto& bucket : buckets_) {
    std::int64_t elements = 0;
    for (auto i : bucket->parameters) elements += parameters_[i].value.numel();
    bucket->buffer = collective_->make_buffer(elements, parameters_[bucket->parameters.front()].value.scalar_type());
    const auto flat = bucket->buffer->tensor();
    std::int64_t offset = 0;
    for (auto i : bucket->parameters) {
      const auto& value = parameters_[i].value;
      // Shares storage but is no view, so that an optimizer's zero_grad() may detach it.
      slots_[i] = at::empty({0}, flat.options()).set_(flat.storage(), offset, value.sizes(), value.strides());
      offset += value.numel();
    }
  }
}

void Reducer::begin_backward() {
  in_backward_ = true;
  next_bucket_ = 0;
  std::fill(ready_.begin(), ready_.end(), 0);
  for (auto& bucket : buckets_) bucket->missing = bucket->parameters.size();
}

void Reducer::gradient_ready(std::size_t parameter) {
  if (!sync_) return;
  std::lock_guard lock(mutex_);
  if (!in_backward_) {
    begin_backward();
    // Runs at the end of this backward(), which throws what it throws.
    autograd::Engine::get_default_engine().queue_callback([this] { finish_backward(); });
  }
  if (std::exchange(ready_[parameter], 1))
    throw Error(ErrorCode::invalid_state,
                fmt::format("parameter {} got its gradient twice in one backward(): is it used in a checkpointed or "
                            "re-entrant part?",
                            parameters_[parameter].name));
  put(parameter);
  buckets_[bucket_of_[parameter]]->missing -= 1;
  start_ready_buckets();
}

/// Moves a gradient into its bucket, where it stays.
void Reducer::put(std::size_t parameter) {
  at::NoGradGuard no_grad;
  auto& gradient = parameters_[parameter].value.mutable_grad();
  auto& slot = slots_[parameter];
  if (!gradient.defined()) {
    slot.zero_();
  } else if (gradient.is_sparse()) {
    slot.copy_(gradient.to_dense());
    gradient = slot;
  } else if (!gradient.is_alias_of(slot)) {
    slot.copy_(gradient);
    gradient = slot;
  }
}

/// In the fixed order, so that all ranks start the same one.
void Reducer::start_ready_buckets() {
  for (std::size_t i = 0; i < next_bucket_; ++i) buckets_[i]->buffer->poke();
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_]->missing == 0; ++next_bucket_)
    buckets_[next_bucket_]->buffer->start(1.0 / collective_->size());
}

void Reducer::finish_backward() {
  std::lock_guard lock(mutex_);
  in_backward_ = false;
  const bool complete = std::all_of(ready_.begin(), ready_.end(), [](char ready) { return ready != 0; });
  if (!complete) {
    if (!options_.find_unused_parameters) throw_unused();
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (!ready_[i]) put(i);
    for (auto& bucket : buckets_) bucket->missing = 0;
    start_ready_buckets();
  }
  for (auto& bucket : buckets_) bucket->buffer->finish();
  if (!options_.find_unused_parameters) return;
  // A parameter that no rank used keeps no gradient, so that weight decay leaves it alone; one that others used gets
  // theirs.
  at::NoGradGuard no_grad;
  auto used = at::zeros({static_cast<std::int64_t>(parameters_.size())}, at::kInt);
  for (std::size_t i = 0; i < parameters_.size(); ++i) used.data_ptr<int>()[i] = ready_[i];
  collective_->all_reduce(used);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!ready_[i] && used.data_ptr<int>()[i] > 0) parameters_[i].value.mutable_grad() = slots_[i];
}

void Reducer::throw_unused() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!ready_[i]) names.push_back(parameters_[i].name);
  throw Error(ErrorCode::invalid_state,
              fmt::format("these parameters got no gradient in backward(): {}. Every rank must use all of them, or "
                          "prepare_model() gets find_unused_parameters = true",
                          fmt::join(names, ", ")),
              collective_->rank());
}

}  // namespace troupe
