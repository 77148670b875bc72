// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/torch_group.hpp"

#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/shm_group.hpp"
#include "backends/torch/gloo_collective.hpp"
#include "backends/torch/shm_collective.hpp"
#include "runtime/session/session.hpp"

namespace troupe {
namespace {

[[noreturn]] void refuse(const char* option, const Json& value, const char* valid) {
  throw Error(ErrorCode::invalid_option, fmt::format("TorchConfig.{} = {} is refused; valid: {}", option,
                                                     value.dump(-1, ' ', true, Json::error_handler_t::replace), valid));
}

}  // namespace

TorchConfig parse_torch_config(const Json& options) {
  TorchConfig config;
  for (const auto& item : options.items()) {
    const auto& key = item.key();
    const auto& value = item.value();
    if (key == "backend") {
      if (value != "auto" && value != "gloo") refuse("backend", value, "\"auto\", \"gloo\"");
      config.backend = value;
    } else if (key == "init_method") {
      if (value != "env" && value != "tcp") refuse("init_method", value, "\"env\", \"tcp\"");
      config.init_method = value;
    } else if (key == "timeout_s") {
      if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() > 1e6)
        refuse("timeout_s", value, "seconds above 0, up to 1000000");
      config.timeout_s = value;
    } else if (key == "interface") {
      if (!value.is_string()) refuse("interface", value, "an address or the name of an interface");
      config.interface = value;
    } else if (key == "shared_memory") {
      if (!value.is_boolean()) refuse("shared_memory", value, "true, false");
      config.shared_memory = value;
    } else {
      throw Error(ErrorCode::invalid_option,
                  fmt::format("TorchConfig has no option \"{}\"; valid: backend, init_method, timeout_s, interface, "
                              "shared_memory",
                              key));
    }
  }
  return config;
}

TorchGroup::TorchGroup(const TorchConfig& config, BackendContext context)
    : config_(config), context_(std::move(context)) {}

TorchGroup::~TorchGroup() = default;

void TorchGroup::check_not_aborted() const {
  std::lock_guard lock(mutex_);
  if (aborted_) throw GroupLost("the group of this worker is gone");
}

const std::shared_ptr<Collective>& TorchGroup::collective() {
  std::lock_guard making(making_);
  if (collective_) return collective_;
  check_not_aborted();
  const auto timeout = std::chrono::milliseconds(std::llround(config_.timeout_s * 1000));
  std::shared_ptr<Collective> made;
  if (config_.shared_memory && context_.local_world_size == context_.world_size) {
    std::vector<int> members(static_cast<std::size_t>(context_.world_size));
    std::iota(members.begin(), members.end(), 0);
    made = std::make_shared<ShmCollective>(std::make_shared<ShmGroup>(
        ShmGroupOptions{context_.world_rank, members, fmt::format("shm/{}", context_.epoch), timeout}, context_.store,
        context_.descriptors));
  } else {
    if (!gloo_) gloo_ = std::make_shared<GlooGroup>(config_, context_);
    made = std::make_shared<GlooCollective>(gloo_);
  }
  std::lock_guard lock(mutex_);
  collective_ = std::move(made);
  if (aborted_) collective_->abort();
  return collective_;
}

const std::shared_ptr<GlooGroup>& TorchGroup::gloo() {
  std::lock_guard making(making_);
  if (gloo_) return gloo_;
  check_not_aborted();
  auto made = std::make_shared<GlooGroup>(config_, context_);
  std::lock_guard lock(mutex_);
  gloo_ = std::move(made);
  if (aborted_) gloo_->abort();
  return gloo_;
}

void TorchGroup::abort() noexcept {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  if (collective_) collective_->abort();
  if (gloo_) gloo_->abort();
}

std::shared_ptr<TorchGroup> TorchGroup::find() {
  const auto session = detail::Session::current();
  return session ? session->data().get<TorchGroup>("torch") : nullptr;
}

std::shared_ptr<TorchGroup> TorchGroup::current(const char* caller) {
  if (auto group = detail::Session::require(caller)->data().get<TorchGroup>("torch")) return group;
  throw Error(ErrorCode::invalid_state,
              fmt::format("{} needs a group of workers, but the trainer has no torch backend: give it .backend = "
                          "\"torch\"",
                          caller));
}

}  // namespace troupe
