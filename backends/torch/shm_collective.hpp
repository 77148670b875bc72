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
  void all_reduce(at::Tensor& tensor, double scale) override;
  void broadcast(at::Tensor& tensor, int root) override;
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override;
  void barrier() override { group_->barrier(); }
  std::unique_ptr<ReduceBuffer> make_buffer(std::int64_t elements, at::ScalarType type) override;
  void abort() noexcept override { group_->abort(); }

private:
  /// Tensors from outside go through this, piece by piece.
  std::shared_ptr<ShmGroup> group_;
  std::shared_ptr<ShmGroup::Region> stage_;
};

}  // namespace troupe
