// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/prepared_models.hpp"

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/train.hpp>

#include "backends/torch/distinct_parameters.hpp"
#include "backends/torch/rank_replicas.hpp"
#include "backends/torch/reducer.hpp"

namespace troupe {
namespace {

using train::torch::CommHook;
using train::torch::GradientBucket;
using train::torch::PrepareModelOptions;

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

/// The others go to `frozen`.
std::vector<NamedParameter> trained_parameters(const Module& module, std::vector<NamedParameter>& frozen) {
  const auto sparse = sparse_parameters(module);
  std::vector<NamedParameter> trained;
  // Each once: two hooks on one gradient would move it into two places, and average one of them.
  for (const auto& [name, value] : distinct_parameters(module)) {
    if (!value.requires_grad()) {
      frozen.push_back({name, value});
      continue;
    }
    if (value.is_complex())
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("parameter {} is complex, and gradients of complex parameters are not averaged: make it of "
                      "real numbers, with torch::view_as_complex() in forward()",
                      name));
    trained.push_back({name, value, sparse.contains(value.unsafeGetTensorImpl())});
  }
  return trained;
}

ReducerOptions reducer_options(const PrepareModelOptions& options, const Collective& collective,
                               detail::RankData& rank) {
  ReducerOptions made;
  made.bucket_bytes = options.bucket_bytes > 0 ? options.bucket_bytes : collective.bucket_bytes();
  made.first_bucket_bytes = std::min(made.bucket_bytes, made.first_bucket_bytes);
  made.find_unused_parameters = options.find_unused_parameters;
  made.check_gradients = options.check_gradients;
  made.comm_hook = options.comm_hook;
  if (const auto& function = options.comm_hook.function())
    // backward() may run on a thread of libtorch that belongs to no rank.
    made.comm_hook = CommHook([function, context = train::context()](GradientBucket& bucket) {
      train::ContextGuard guard(context);
      function(bucket);
    });
  made.replicas = RankReplicas::of(rank);
  made.joined = JoinedModel::of(rank);
  return made;
}

/// Null if the model has nothing to train, or is not to be helped with it.
std::shared_ptr<Reducer> make_reducer(const Module& module, const PrepareModelOptions& options, detail::RankData& rank,
                                      const std::shared_ptr<Collective>& collective) {
  if (!options.wrap_ddp) return nullptr;
  std::vector<NamedParameter> frozen;
  auto trained = trained_parameters(module, frozen);
  if (trained.empty()) return nullptr;
  return std::make_shared<Reducer>(collective, std::move(trained), std::move(frozen),
                                   options.broadcast_buffers ? module.buffers() : std::vector<at::Tensor>(),
                                   reducer_options(options, *collective, rank));
}

}  // namespace

std::string describe_model(const Module& module, const PrepareModelOptions& options) {
  std::ostringstream text;
  const auto line = [&](const std::string& name, const at::Tensor& tensor, const char* kind) {
    text << kind << " " << name << " " << tensor.dtype() << " " << tensor.sizes();
    // Averaged as it lies in memory: ranks must agree on that too.
    if (tensor.layout() == at::kStrided && !tensor.is_contiguous()) text << " with strides " << tensor.strides();
    text << "\n";
  };
  const auto sparse = sparse_parameters(module);
  std::map<const c10::TensorImpl*, std::string> first_names;
  for (const auto& item : module.named_parameters()) {
    const auto* tensor = item.value().unsafeGetTensorImpl();
    // What is averaged apart from the others, and what is averaged once under several names.
    if (const auto [first, is_new] = first_names.emplace(tensor, item.key()); !is_new)
      text << "parameter " << item.key() << " is the same as " << first->second << "\n";
    else
      line(item.key(), item.value(),
           !item.value().requires_grad() ? "frozen parameter"
           : sparse.contains(tensor)     ? "sparse parameter"
                                         : "parameter");
  }
  for (const auto& item : module.named_buffers()) line(item.key(), item.value(), "buffer");
  text << fmt::format(
      "options: find_unused_parameters {}, bucket_bytes {}, broadcast_buffers {}, check_gradients {}, comm_hook {}, "
      "wrap_ddp {}\n",
      options.find_unused_parameters, options.bucket_bytes, options.broadcast_buffers, options.check_gradients,
      options.comm_hook.function() ? -1 : static_cast<int>(options.comm_hook.built_in()), options.wrap_ddp);
  return text.str();
}

PreparedModels& PreparedModels::instance() {
  static auto* models = new PreparedModels;  // tensors may not be destroyed at exit, after libtorch's own globals
  return *models;
}

void PreparedModels::add(detail::RankData& rank, const std::shared_ptr<Module>& module,
                         const PrepareModelOptions& options, const std::shared_ptr<Collective>& collective) {
  if (collective && options.wrap_ddp) check_not_shared(rank, *module);
  auto reducer = collective ? make_reducer(*module, options, rank, collective) : nullptr;
  std::lock_guard lock(mutex_);
  entries_[module.get()] = {module, &rank, next_number_++, options, std::move(reducer)};
}

/// Two models would put the gradient of a shared parameter into two places, and average what is not there yet.
void PreparedModels::check_not_shared(const detail::RankData& rank, const Module& module) {
  std::set<const c10::TensorImpl*> taken;
  for (const auto& [other, entry] : of(rank)) {
    if (other.get() == &module || !entry.reducer) continue;
    for (const auto& parameter : entry.reducer->parameters()) taken.insert(parameter.value.unsafeGetTensorImpl());
  }
  for (const auto& item : module.named_parameters())
    if (item.value().requires_grad() && taken.contains(item.value().unsafeGetTensorImpl()))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("parameter {} is trained by another model that prepare_model() was given before, and "
                              "would be averaged twice: make one module of both and prepare that",
                              item.key()));
}

void PreparedModels::forget(const Module* module) {
  std::vector<std::shared_ptr<Reducer>> dropped;  // behind the lock: the memory of a whole model goes with it
  std::lock_guard lock(mutex_);
  for (auto& [address, entry] : entries_)
    if (address == module || entry.module.expired()) dropped.push_back(std::move(entry.reducer));
  std::erase_if(entries_, [&](const auto& one) { return one.first == module || one.second.module.expired(); });
}

std::shared_ptr<Reducer> PreparedModels::find(const Module* module) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(module);
  return found == entries_.end() || found->second.module.expired() ? nullptr : found->second.reducer;
}

std::vector<std::pair<std::shared_ptr<Module>, PreparedModels::Entry>> PreparedModels::of(
    const detail::RankData& rank) {
  std::vector<std::pair<std::shared_ptr<Module>, Entry>> found;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [address, entry] : entries_)
      if (auto module = entry.module.lock(); module && entry.rank == &rank)
        found.emplace_back(std::move(module), entry);
  }
  std::sort(found.begin(), found.end(),
            [](const auto& left, const auto& right) { return left.second.number < right.second.number; });
  return found;
}

void PreparedModels::release(const detail::RankData& rank) {
  std::vector<std::shared_ptr<Reducer>> dropped;
  std::lock_guard lock(mutex_);
  for (auto& [address, entry] : entries_)
    if (entry.rank == &rank) dropped.push_back(std::move(entry.reducer));
}

void PreparedModels::set_reducer(const Module* module, std::shared_ptr<Reducer> reducer) {
  std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(module); found != entries_.end()) found->second.reducer.swap(reducer);
}

void PreparedModels::detach(const detail::RankData& rank) {
  for (const auto& [module, entry] : of(rank)) {
    set_reducer(module.get(), nullptr);
    // Gradients live in the memory of the lost group, and are those of a step that did not end.
    for (auto& parameter : module->parameters()) parameter.mutable_grad() = at::Tensor();
  }
}

void PreparedModels::attach(detail::RankData& rank, const std::shared_ptr<Collective>& collective) {
  for (const auto& [module, entry] : of(rank)) {
    // One that was prepared without a group did not know its device.
    const auto device = train::torch::get_device();
    const auto tensors = module->parameters();
    if (std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) { return tensor.device() != device; }))
      module->to(device);
    // Nobody looked while there was one worker alone.
    if (collective && entry.options.wrap_ddp) check_not_shared(rank, *module);
    set_reducer(module.get(), collective ? make_reducer(*module, entry.options, rank, collective) : nullptr);
  }
}

std::vector<std::string> PreparedModels::descriptions(const detail::RankData& rank) {
  std::vector<std::string> found;
  for (const auto& [module, entry] : of(rank)) found.push_back(describe_model(*module, entry.options));
  return found;
}

std::set<const at::TensorImpl*> PreparedModels::averaged_parameters(const detail::RankData& rank) {
  std::set<const at::TensorImpl*> found;
  for (const auto& [module, entry] : of(rank))
    if (entry.reducer)
      for (const auto& parameter : entry.reducer->parameters()) found.insert(parameter.value.unsafeGetTensorImpl());
  return found;
}

bool PreparedModels::has_own_buffers(const detail::RankData& rank) {
  const auto models = of(rank);
  return std::any_of(models.begin(), models.end(), [](const auto& model) {
    return !model.second.options.broadcast_buffers && !model.first->buffers().empty();
  });
}

bool PreparedModels::checks_gradients(const detail::RankData& rank) {
  const auto models = of(rank);
  return std::any_of(models.begin(), models.end(),
                     [](const auto& model) { return model.second.options.check_gradients; });
}

}  // namespace troupe
