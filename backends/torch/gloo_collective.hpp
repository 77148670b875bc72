// SPDX-License-Identifier: Apache-2.0
// Collectives over Gloo, on CPU tensors.
#pragma once

#include <memory>

#include "backends/torch/collective.hpp"
#include "backends/torch/gloo_group.hpp"

namespace troupe {

class GlooCollective : public Collective {
public:
  explicit GlooCollective(std::shared_ptr<GlooGroup> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::unique_ptr<ReduceBuffer> make_buffer(std::int64_t elements, at::ScalarType type) override;
  void abort() noexcept override { group_->abort(); }

protected:
  void reduce_flat(const at::Tensor& flat, Reduce reduce, double scale, const Operation& operation) override;
  void broadcast_flat(const at::Tensor& flat, int root, const Operation& operation) override;
  void gather_flat(const at::Tensor& flat, const std::vector<at::Tensor>& all, const Operation& operation) override;
  /// One small message a rank: Gloo would end the process of a rank whose tensor is too small for what it is sent.
  void wait_for_all(const Operation& operation) override;

private:
  void gather(const at::Tensor& flat, const std::vector<at::Tensor>& all);

  std::shared_ptr<GlooGroup> group_;
};

}  // namespace troupe
