// SPDX-License-Identifier: Apache-2.0
// Collectives between ranks of one host, through memory they share: each rank sums its slice over all ranks and writes
// it to all. No sockets, no copies of gradients that live in a ReduceBuffer.
#pragma once

#include "backends/shm_group.hpp"
#include "backends/torch/collective.hpp"

namespace troupe {

class ShmCollective : public Collective {
public:
  explicit ShmCollective(std::shared_ptr<ShmGroup> group);

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::unique_ptr<ReduceBuffer> make_buffer(std::int64_t elements, at::ScalarType type) override;
  void abort() noexcept override { group_->abort(); }

protected:
  void reduce_flat(const at::Tensor& flat, Reduce reduce, double scale, const Operation& operation) override;
  void broadcast_flat(const at::Tensor& flat, int root, const Operation& operation) override;
  void gather_flat(const at::Tensor& flat, const std::vector<at::Tensor>& all, const Operation& operation) override;
  void wait_for_all(const Operation& operation) override;

private:
  std::shared_ptr<ShmGroup> group_;
  /// Tensors from outside go through this, piece by piece.
  std::shared_ptr<ShmGroup::Region> stage_;
  std::vector<int> everybody_;
};

}  // namespace troupe
