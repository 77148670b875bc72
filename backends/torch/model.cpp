// SPDX-License-Identifier: Apache-2.0
// prepare_model(): the same state on all workers, and a Reducer behind the model's gradients.
#include <torch/nn/module.h>
#include <troupe/torch_model.hpp>

#include <map>
#include <mutex>
#include <sstream>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/torch_collectives.hpp>

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

std::string describe_state(const Module& module) {
  std::ostringstream text;
  const auto line = [&](const std::string& name, const at::Tensor& tensor, const char* kind) {
    text << kind << " " << name << " " << tensor.dtype() << " " << tensor.sizes() << "\n";
  };
  for (const auto& item : module.named_parameters()) line(item.key(), item.value(), "parameter");
  for (const auto& item : module.named_buffers()) line(item.key(), item.value(), "buffer");
  return text.str();
}

void require_same_model(const Module& module, TorchGroup& group) {
  const auto states = all_gather_json(describe_state(module));
  for (std::size_t rank = 1; rank < states.size(); ++rank)
    if (states[rank] != states[0])
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("the models of rank 0 and rank {} differ. Rank 0:\n{}Rank {}:\n{}All ranks must build the "
                      "same model",
                      rank, states[0].get<std::string>(), rank, states[rank].get<std::string>()),
          group.rank());
}

}  // namespace

void detail::prepare_module(const std::shared_ptr<Module>& module, const PrepareModelOptions& options) {
  if (!module) throw Error(ErrorCode::invalid_argument, "prepare_model() was given an empty model");
  auto group = TorchGroup::current("prepare_model()");
  if (group->size() == 1) return;
  require_same_model(*module, *group);
  at::NoGradGuard no_grad;
  for (auto& item : module->named_parameters()) broadcast(item.value().detach());
  for (auto& item : module->named_buffers()) broadcast(item.value());

  std::vector<NamedParameter> trained;
  for (auto& item : module->named_parameters())
    if (item.value().requires_grad()) trained.push_back({item.key(), item.value()});
  if (trained.empty()) return;
  ReducerOptions reducer_options;
  reducer_options.bucket_bytes = options.bucket_bytes;
  reducer_options.first_bucket_bytes = std::min(options.bucket_bytes, reducer_options.first_bucket_bytes);
  reducer_options.find_unused_parameters = options.find_unused_parameters;
  reducers().set(module, std::make_shared<Reducer>(group->collective(), std::move(trained), reducer_options));
}

NoSync::NoSync(const std::shared_ptr<Module>& module) : module_(module) {
  if (auto reducer = reducers().find(module_.get())) reducer->set_sync(false);
}

NoSync::~NoSync() {
  if (auto reducer = reducers().find(module_.get())) reducer->set_sync(true);
}

void broadcast_buffers(const std::shared_ptr<Module>& module) {
  at::NoGradGuard no_grad;
  for (auto& item : module->named_buffers()) broadcast(item.value());
}

}  // namespace troupe::train::torch
