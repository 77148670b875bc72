// SPDX-License-Identifier: Apache-2.0
// prepare_model(): the same state on all workers, and a Reducer behind the model's gradients.
#include <torch/nn/module.h>
#include <troupe/torch_model.hpp>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/torch_amp.hpp>
#include <troupe/torch_collectives.hpp>
#include <troupe/train.hpp>

#include "backends/torch/distinct_parameters.hpp"
#include "backends/torch/prepared_models.hpp"
#include "backends/torch/reducer.hpp"
#include "backends/torch/torch_group.hpp"
#include "runtime/session/session.hpp"

namespace troupe::train::torch {
namespace {

using Module = ::torch::nn::Module;

void require_same_model(const Module& module, const PrepareModelOptions& options, TorchGroup& group) {
  const auto states = all_gather_json(describe_model(module, options));
  for (std::size_t rank = 1; rank < states.size(); ++rank)
    if (states[rank] != states[0])
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("the models of rank 0 and rank {} differ. Rank 0:\n{}Rank {}:\n{}All ranks must build the "
                      "same model",
                      rank, states[0].get<std::string>(), rank, states[rank].get<std::string>()),
          group.rank());
}

void broadcast_parameters(const Module& module, Collective& collective, int root) {
  at::NoGradGuard no_grad;
  for (const auto& [name, value] : distinct_parameters(module)) {
    auto values = value.detach();
    collective.broadcast(values, root);
  }
}

void broadcast_all_buffers(const Module& module, Collective& collective, int root) {
  FlatBroadcast(module.buffers()).run(collective, root);
}

}  // namespace

void detail::prepare_module(const std::shared_ptr<Module>& module, const PrepareModelOptions& options) {
  if (!module) throw Error(ErrorCode::invalid_argument, "prepare_model() was given an empty model");
  const auto session = troupe::detail::Session::require("prepare_model()");
  // A rank that joins a live run has no group yet: its model gets the others' state, and a reducer, when it has.
  const auto group = session->joining() ? nullptr : TorchGroup::current("prepare_model()");
  auto& models = PreparedModels::instance();
  if (const auto reducer = models.find(module.get()); reducer && reducer->is_joined())
    throw Error(ErrorCode::invalid_state,
                "prepare_model() was called inside the join() of the same model, where workers without data cannot "
                "follow: prepare it before join(), or behind it");
  models.forget(module.get());
  if (options.move_to_device) module->to(get_device());
  std::shared_ptr<Collective> collective;
  if (group && group->size() > 1) {
    require_same_model(*module, options, *group);
    collective = group->collective();
    broadcast_parameters(*module, *collective, 0);
    broadcast_all_buffers(*module, *collective, 0);
  }
  models.add(session->data(), module, options, collective);
}

NoSync::NoSync(const std::shared_ptr<Module>& module) : reducer_(PreparedModels::instance().find(module.get())) {
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
    : module_(module), reducer_(PreparedModels::instance().find(module.get())), options_(options) {
  // A thread that is bound to no rank has none.
  if (reducer_ && !options_.step && troupe::detail::Session::current() && grad_scaler().enabled())
    throw Error(ErrorCode::invalid_option,
                "join() in half precision needs JoinOptions.step = [&] { optimizer.step(); }: in each step all workers "
                "look for overflows together, also those without data");
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
  for (auto step = reducer_->shadow_backward(); step != Reducer::Shadow::over; step = reducer_->shadow_backward()) {
    if (!options_.step || step != Reducer::Shadow::averaged) continue;
    expect_gradients();
    options_.step();
  }
  broadcast_parameters(*module_, reducer_->collective(), reducer_->last_active_rank());
  broadcast_all_buffers(*module_, reducer_->collective(), reducer_->last_active_rank());
}

}  // namespace troupe::train::torch
