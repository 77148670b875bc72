// SPDX-License-Identifier: Apache-2.0
// prepare_model(): the same state on all workers, and a Reducer behind the model's gradients.
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <troupe/torch_model.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/torch_collectives.hpp>
#include <troupe/train.hpp>

#include "backends/torch/reducer.hpp"
#include "backends/torch/torch_group.hpp"

namespace troupe::train::torch {
namespace {

using Module = ::torch::nn::Module;

/// The reducers of models that live, found by their module. Each goes with its model, at the latest when another is
/// prepared.
class Reducers {
public:
  void set(const std::shared_ptr<Module>& module, std::shared_ptr<Reducer> reducer) {
    std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const auto& entry) { return entry.second.module.expired(); });
    entries_[module.get()] = {module, std::move(reducer)};
  }
  void erase(const Module* module) {
    std::lock_guard lock(mutex_);
    entries_.erase(module);
  }
  std::shared_ptr<Reducer> find(const Module* module) {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(module);
    return found == entries_.end() || found->second.module.expired() ? nullptr : found->second.reducer;
  }

private:
  struct Entry {
    std::weak_ptr<Module> module;
    std::shared_ptr<Reducer> reducer;
  };
  std::mutex mutex_;
  std::map<const Module*, Entry> entries_;
};

Reducers& reducers() {
  static auto* instance = new Reducers;  // tensors may not be destroyed at exit, after libtorch's own globals
  return *instance;
}

/// What must be the same on all ranks.
std::string describe(const Module& module, const PrepareModelOptions& options) {
  std::ostringstream text;
  const auto line = [&](const std::string& name, const at::Tensor& tensor, const char* kind) {
    text << kind << " " << name << " " << tensor.dtype() << " " << tensor.sizes() << "\n";
  };
  for (const auto& item : module.named_parameters())
    line(item.key(), item.value(), item.value().requires_grad() ? "parameter" : "frozen parameter");
  for (const auto& item : module.named_buffers()) line(item.key(), item.value(), "buffer");
  text << fmt::format(
      "options: find_unused_parameters {}, bucket_bytes {}, broadcast_buffers {}, check_gradients {}, comm_hook {}\n",
      options.find_unused_parameters, options.bucket_bytes, options.broadcast_buffers, options.check_gradients,
      options.comm_hook.function() ? -1 : static_cast<int>(options.comm_hook.built_in()));
  return text.str();
}

void require_same_model(const Module& module, const PrepareModelOptions& options, TorchGroup& group) {
  const auto states = all_gather_json(describe(module, options));
  for (std::size_t rank = 1; rank < states.size(); ++rank)
    if (states[rank] != states[0])
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("the models of rank 0 and rank {} differ. Rank 0:\n{}Rank {}:\n{}All ranks must build the "
                      "same model",
                      rank, states[0].get<std::string>(), rank, states[rank].get<std::string>()),
          group.rank());
}

/// Parameters of embeddings that were made with sparse(true).
std::set<const c10::TensorImpl*> sparse_parameters(const Module& module) {
  std::set<const c10::TensorImpl*> found;
  for (const auto& one : module.modules()) {
    if (const auto* embedding = one->as<::torch::nn::EmbeddingImpl>(); embedding && embedding->options.sparse())
      found.insert(embedding->weight.unsafeGetTensorImpl());
    if (const auto* bag = one->as<::torch::nn::EmbeddingBagImpl>(); bag && bag->options.sparse())
      found.insert(bag->weight.unsafeGetTensorImpl());
  }
  return found;
}

std::vector<NamedParameter> trained_parameters(const Module& module) {
  const auto sparse = sparse_parameters(module);
  std::vector<NamedParameter> trained;
  for (const auto& item : module.named_parameters())
    if (item.value().requires_grad())
      trained.push_back({item.key(), item.value(), sparse.contains(item.value().unsafeGetTensorImpl())});
  return trained;
}

ReducerOptions reducer_options(const PrepareModelOptions& options, const Collective& collective) {
  ReducerOptions made;
  made.bucket_bytes = options.bucket_bytes > 0 ? options.bucket_bytes : collective.bucket_bytes();
  made.first_bucket_bytes = std::min(made.bucket_bytes, made.first_bucket_bytes);
  made.find_unused_parameters = options.find_unused_parameters;
  made.check_gradients = options.check_gradients;
  made.comm_hook = options.comm_hook;
  if (const auto& function = options.comm_hook.function())
    // backward() may run on a thread of libtorch that belongs to no rank.
    made.comm_hook = CommHook([function, rank = context()](GradientBucket& bucket) {
      ContextGuard guard(rank);
      function(bucket);
    });
  return made;
}

void broadcast_parameters(const Module& module, Collective& collective, int root) {
  at::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) {
    auto values = item.value().detach();
    collective.broadcast(values, root);
  }
}

void broadcast_all_buffers(const Module& module, Collective& collective, int root) {
  FlatBroadcast(module.buffers()).run(collective, root);
}

}  // namespace

void detail::prepare_module(const std::shared_ptr<Module>& module, const PrepareModelOptions& options) {
  if (!module) throw Error(ErrorCode::invalid_argument, "prepare_model() was given an empty model");
  auto group = TorchGroup::current("prepare_model()");
  reducers().erase(module.get());
  module->to(get_device());
  if (group->size() == 1) return;
  require_same_model(*module, options, *group);
  auto& collective = group->collective();
  broadcast_parameters(*module, *collective, 0);
  broadcast_all_buffers(*module, *collective, 0);
  auto trained = trained_parameters(*module);
  if (trained.empty()) return;
  reducers().set(module,
                 std::make_shared<Reducer>(collective, std::move(trained),
                                           options.broadcast_buffers ? module->buffers() : std::vector<at::Tensor>(),
                                           reducer_options(options, *collective)));
}

NoSync::NoSync(const std::shared_ptr<Module>& module) : reducer_(reducers().find(module.get())) {
  if (reducer_) reducer_->stop_sync();
}

NoSync::~NoSync() {
  if (reducer_) reducer_->resume_sync();
}

void broadcast_buffers(const std::shared_ptr<Module>& module) {
  auto group = TorchGroup::current("broadcast_buffers()");
  if (group->size() > 1) broadcast_all_buffers(*module, *group->collective(), 0);
}

detail::JoinScope::JoinScope(const std::shared_ptr<Module>& module, const JoinOptions& options)
    : module_(module), reducer_(reducers().find(module.get())), options_(options) {
  if (reducer_)
    reducer_->begin_join(options_.divide_by_initial_world_size);
  else if (TorchGroup::current("join()")->size() > 1)
    throw Error(ErrorCode::invalid_state,
                "join() needs a model with trainable parameters that prepare_model() has prepared");
}

detail::JoinScope::~JoinScope() {
  if (reducer_) reducer_->end_join();
}

void detail::JoinScope::finish() {
  if (!reducer_) return;
  while (reducer_->shadow_backward())
    if (options_.step) options_.step();
  broadcast_parameters(*module_, reducer_->collective(), reducer_->last_active_rank());
  broadcast_all_buffers(*module_, reducer_->collective(), reducer_->last_active_rank());
}

}  // namespace troupe::train::torch
