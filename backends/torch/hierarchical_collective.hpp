// SPDX-License-Identifier: Apache-2.0
// Collectives between ranks of several hosts: shared memory inside a host, Gloo between the first ranks (leaders) of
// the hosts. Each host sums its ranks in rank order, Gloo sums the hosts in an order that depends on their number and
// the tensor's size alone: the same bits on every rank and in every run.
#pragma once

#include <memory>
#include <vector>

#include "backends/shm_group.hpp"
#include "backends/torch/collective.hpp"
#include "backends/torch/gloo_collective.hpp"

namespace troupe {

class LaunchOrder;

/// World ranks by host, each host's in ascending order. A host's first is its leader.
using HostLayout = std::vector<std::vector<int>>;

class HierarchicalCollective : public Collective {
public:
  /// `local`: the ranks of this host; `between`: the leaders of all hosts, null on other ranks.
  HierarchicalCollective(int rank, HostLayout hosts, std::shared_ptr<ShmGroup> local,
                         std::shared_ptr<GlooCollective> between);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<ReduceBuffer> make_buffer(std::int64_t elements, at::ScalarType type) override;
  void abort() noexcept override;

protected:
  void reduce_flat(const at::Tensor& flat, Reduce reduce, double scale, const Operation& operation) override;
  void broadcast_flat(const at::Tensor& flat, int root, const Operation& operation) override;
  void gather_flat(const at::Tensor& flat, const std::vector<at::Tensor>& all, const Operation& operation) override;
  void wait_for_all(const Operation& operation) override;
  void separate_buffers() override;

private:
  bool is_leader() const { return between_ != nullptr; }
  /// Begins a piece: at the first one the ranks of all hosts agree on what they do.
  void enter(bool first, const Operation& operation);

  const int rank_;
  const HostLayout hosts_;
  const int size_;
  const std::shared_ptr<ShmGroup> local_;
  const std::shared_ptr<GlooCollective> between_;
  const std::shared_ptr<ShmGroup::Region> stage_;
  std::shared_ptr<ShmGroup::Region> gathered_;  // pieces of all ranks of all hosts
  std::shared_ptr<LaunchOrder> order_;
};

}  // namespace troupe
