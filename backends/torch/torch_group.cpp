// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/torch_group.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/rendezvous.hpp"
#include "backends/shm_group.hpp"
#include "backends/torch/device.hpp"
#include "backends/torch/gloo_collective.hpp"
#include "backends/torch/hierarchical_collective.hpp"
#include "backends/torch/nccl.hpp"
#include "backends/torch/shm_collective.hpp"
#include "runtime/base/host.hpp"
#include "runtime/base/log.hpp"
#include "runtime/session/session.hpp"

namespace troupe {
namespace {

std::atomic<int> groups_on_threads{0};

[[noreturn]] void refuse(const char* option, const Json& value, const char* valid) {
  throw Error(ErrorCode::invalid_option, fmt::format("TorchConfig.{} = {} is refused; valid: {}", option,
                                                     value.dump(-1, ' ', true, Json::error_handler_t::replace), valid));
}

std::chrono::milliseconds timeout_of(const TorchConfig& config) {
  return std::chrono::milliseconds(std::llround(config.timeout_s * 1000));
}

std::shared_ptr<GlooGroup> make_gloo(const TorchConfig& config, const BackendContext& context, const std::string& name,
                                     int member, std::vector<int> members, bool for_gpus = false) {
  GlooGroupOptions options;
  options.rank = member;
  options.members = std::move(members);
  options.prefix = fmt::format("gloo/{}/{}", context.epoch, name);
  const bool one_host = context.local_world_size == context.world_size;
  options.interface = !config.interface.empty() ? config.interface : one_host ? "127.0.0.1" : detail::node_ip();
  options.timeout = timeout_of(config);
  options.own_process = context.own_process;
  options.for_gpus = for_gpus;
  return std::make_shared<GlooGroup>(std::move(options), context.store);
}

}  // namespace

TorchConfig parse_torch_config(const Json& options) {
  TorchConfig config;
  for (const auto& item : options.items()) {
    const auto& key = item.key();
    const auto& value = item.value();
    if (key == "backend") {
      if (value != "auto" && value != "gloo" && value != "nccl")
        refuse("backend", value, "\"auto\", \"gloo\", \"nccl\"");
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
    } else if (key == "shared_memory" || key == "keep_memory") {
      if (!value.is_boolean()) refuse(key.c_str(), value, "true, false");
      (key == "shared_memory" ? config.shared_memory : config.keep_memory) = value;
    } else if (key == "pretend_hosts") {
      if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() > 4096)
        refuse("pretend_hosts", value, "0 (as they are) to 4096");
      config.pretend_hosts = value;
    } else if (key == "gpus_per_worker") {
      if (!value.is_number() || !(value.get<double>() >= 0)) refuse("gpus_per_worker", value, "0 or more");
      config.gpus_per_worker = value;
    } else {
      throw Error(ErrorCode::invalid_option,
                  fmt::format("TorchConfig has no option \"{}\"; valid: backend, init_method, timeout_s, interface, "
                              "shared_memory, keep_memory, pretend_hosts, gpus_per_worker",
                              key));
    }
  }
  return config;
}

TorchGroup::TorchGroup(const TorchConfig& config, BackendContext context)
    : config_(config),
      context_(std::move(context)),
      timeout_(timeout_of(config)),
      device_(device_of_worker(context_.local_rank, config.gpus_per_worker)),
      everybody_(static_cast<std::size_t>(context_.world_size)) {
  std::iota(everybody_.begin(), everybody_.end(), 0);
  if (context_.store) gloo_ = make_gloo(config_, context_, "all", rank(), everybody_, device_.is_cuda());
  // Said now, not at the first operation in the middle of a run.
  const bool on_gpus = device_.is_cuda() && context_.world_size > 1;
  if (on_gpus && config_.backend == "gloo")
    throw Error(ErrorCode::start_failed,
                "TorchConfig.backend = \"gloo\" works on CPU tensors, but use_gpu puts the workers on GPUs: choose "
                "\"nccl\" or \"auto\", or set use_gpu = false");
  if (on_gpus || config_.backend == "nccl") load_nccl();
  if (config_.backend == "nccl" && !device_.is_cuda())
    throw Error(
        ErrorCode::start_failed,
        "TorchConfig.backend = \"nccl\" works on GPUs, but the workers have no CUDA device: set use_gpu = true, or "
        "choose \"gloo\"");
  if (is_on_thread()) groups_on_threads += 1;
}

TorchGroup::~TorchGroup() {
  if (is_on_thread()) groups_on_threads -= 1;
}

/// Keeps what was made, aborted if that was asked for in the meantime.
template <class Made>
void TorchGroup::keep(std::shared_ptr<Made>& place, std::shared_ptr<Made> made) {
  std::lock_guard lock(mutex_);
  place = std::move(made);
  if (aborted_) place->abort();
}

void TorchGroup::check_not_aborted() const {
  std::lock_guard lock(mutex_);
  if (aborted_) throw GroupLost("the group of this worker is gone");
}

const std::shared_ptr<Collective>& TorchGroup::collective() {
  std::lock_guard making(making_);
  if (collective_) return collective_;
  check_not_aborted();
  keep(collective_, make_collective());
  return collective_;
}

const c10::intrusive_ptr<c10d::ProcessGroup>& TorchGroup::process_group() {
  if (!gloo_)
    throw Error(ErrorCode::invalid_state, "local mode has no process group: use num_workers = 1 for a group of one");
  return gloo_->process_group();
}

std::shared_ptr<Collective> TorchGroup::form_nccl() {
  NcclOptions options;
  options.rank = rank();
  options.members = everybody_;
  options.prefix = fmt::format("nccl/{}", context_.epoch);
  options.timeout = timeout_;
  options.device = device_;
  // It can be aborted while it forms.
  keep(nccl_, make_nccl_group(std::move(options), context_.store));
  nccl_->form();
  return nccl_;
}

std::shared_ptr<Collective> TorchGroup::make_collective() {
  if (device_.is_cuda()) return form_nccl();
  const auto hosts = find_hosts();
  if (!config_.shared_memory || hosts.size() == everybody_.size())
    return std::make_shared<GlooCollective>(
        gloo_, [config = config_, context = context_, all = everybody_](auto number) {
          return make_gloo(config, context, fmt::format("buffers/{}", number), context.world_rank, all);
        });
  std::size_t my_host = 0;
  while (std::find(hosts[my_host].begin(), hosts[my_host].end(), rank()) == hosts[my_host].end()) ++my_host;
  const auto& members = hosts[my_host];
  ShmGroupOptions options;
  options.rank = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  options.members = members;
  options.prefix = fmt::format("shm/{}/{}", context_.epoch, my_host);
  options.timeout = timeout_;
  options.ranks_on_machine = context_.local_world_size;
  auto local = std::make_shared<ShmGroup>(std::move(options), context_.store, context_.descriptors);
  if (hosts.size() == 1) return std::make_shared<ShmCollective>(std::move(local));
  std::shared_ptr<GlooCollective> between;
  if (rank() == members.front()) {
    std::vector<int> leaders;
    for (const auto& host : hosts) leaders.push_back(host.front());
    const auto group = [config = config_, context = context_, member = static_cast<int>(my_host),
                        leaders](const std::string& name) {
      return make_gloo(config, context, "leaders/" + name, member, leaders);
    };
    between = std::make_shared<GlooCollective>(
        group("operations"), [group](auto number) { return group(fmt::format("buffers/{}", number)); });
  }
  return std::make_shared<HierarchicalCollective>(rank(), hosts, std::move(local), std::move(between));
}

/// Every rank tells its host; who does not is named.
HostLayout TorchGroup::find_hosts() {
  const auto point = fmt::format("form/{}", context_.epoch);
  const auto host_key = [&](int rank) { return fmt::format("{}/host of {}", point, rank); };
  const bool one_host = context_.local_world_size == context_.world_size;
  if (!one_host) context_.store->set(host_key(rank()), std::to_string(context_.node_rank));
  meet(*context_.store, point, rank(), everybody_, timeout_);
  std::map<int, std::vector<int>> hosts;
  for (int rank : everybody_) {
    int host = config_.pretend_hosts > 0 ? rank * std::min(config_.pretend_hosts, size()) / size() : 0;
    if (!one_host) host = std::stoi(context_.store->get(host_key(rank), timeout_));
    hosts[host].push_back(rank);
  }
  HostLayout layout;
  for (auto& [host, ranks] : hosts) layout.push_back(std::move(ranks));
  return layout;
}

void TorchGroup::abort() noexcept {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  if (collective_) collective_->abort();
  if (gloo_) gloo_->abort();
  if (nccl_) nccl_->abort();
}

bool TorchGroup::has_lost_peers() const { return gloo_ && gloo_->has_lost_peers(); }

std::shared_ptr<TorchGroup> TorchGroup::find() {
  const auto session = detail::Session::current();
  return session ? session->data().get<TorchGroup>("torch") : nullptr;
}

bool TorchGroup::any_on_threads() { return groups_on_threads > 0; }

std::shared_ptr<TorchGroup> TorchGroup::current(const char* caller) {
  const auto session = detail::Session::require(caller);
  if (session->joining()) {
    const auto text = fmt::format(
        "{} was called on rank {}, which joins a live run, on its way to the others: they are in a loop of their "
        "Recoverable, and do not answer. Only prepare_model(), prepare_data_loader() and barrier() may come before "
        "steps() or between two of its loops; move the call into the loop, or behind the last one",
        caller, session->ranks().world_rank);
    log_error("{}", text);
    throw GroupLost(text);
  }
  if (auto group = session->data().get<TorchGroup>("torch")) return group;
  throw Error(ErrorCode::invalid_state,
              fmt::format("{} needs a group of workers, but the trainer has no torch backend: give it .backend = "
                          "\"torch\"",
                          caller));
}

}  // namespace troupe
