// SPDX-License-Identifier: Apache-2.0
// The group of a rank: what carries its collectives, and its c10d process group if somebody wants one.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <troupe/backend.hpp>
#include <troupe/torch_config.hpp>

#include "backends/torch/collective.hpp"

namespace c10d {
class ProcessGroup;
}

namespace troupe {

class GlooGroup;
class NcclGroup;

/// Settings as they arrive in a worker. Throws invalid_option that names the option and its valid values.
TorchConfig parse_torch_config(const Json& options);

class TorchGroup {
public:
  TorchGroup(const TorchConfig& config, BackendContext context);
  ~TorchGroup();

  int rank() const { return context_.world_rank; }
  int size() const { return context_.world_size; }
  /// False if other ranks may live in this process.
  bool own_process() const { return context_.own_process; }
  c10::Device device() const { return device_; }

  /// NCCL on GPUs; on the CPU shared memory inside a host, Gloo between hosts. Made at the first use, which is
  /// collective.
  const std::shared_ptr<Collective>& collective();
  /// Over Gloo. Formed at the first use, which is collective. Throws invalid_state in local mode.
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group();

  /// From any thread: ends pending operations with GroupLost, and all later ones.
  void abort() noexcept;
  /// A loop that uses the c10d group itself is told of lost peers by c10d's own exceptions.
  bool has_lost_peers() const;

  /// The group of the calling rank; throws invalid_state when its trainer has no torch backend, and GroupLost while the
  /// rank joins a live run.
  static std::shared_ptr<TorchGroup> current(const char* caller);
  /// The same, but null when there is none.
  static std::shared_ptr<TorchGroup> find();
  /// Whether threads of this process are ranks of a group of several: one that is bound to none may belong to it.
  static bool any_on_threads();

private:
  void check_not_aborted() const;
  template <class Made>
  void keep(std::shared_ptr<Made>& place, std::shared_ptr<Made> made);
  std::shared_ptr<Collective> make_collective();
  std::vector<std::vector<int>> find_hosts();
  std::shared_ptr<Collective> form_nccl();

  bool is_on_thread() const { return !own_process() && size() > 1; }

  const TorchConfig config_;
  const BackendContext context_;
  const std::chrono::milliseconds timeout_;
  const c10::Device device_;
  std::vector<int> everybody_;
  std::shared_ptr<GlooGroup> gloo_;  // null in local mode
  std::mutex making_;                // one thread makes a transport at a time
  mutable std::mutex mutex_;
  bool aborted_ = false;
  std::shared_ptr<Collective> collective_;
  std::shared_ptr<NcclGroup> nccl_;
};

/// Collective::all_gather_values() in the group of the calling rank; of one rank, a copy.
std::vector<at::Tensor> all_gather_values(const at::Tensor& values);

}  // namespace troupe
