// SPDX-License-Identifier: Apache-2.0
// Collectives over Gloo, on CPU tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/torch/collective.hpp"
#include "backends/torch/gloo_group.hpp"

namespace troupe {

/// Gloo's own threads carry it while backward() goes on.
class GlooBuffer : public ReduceBuffer {
public:
  GlooBuffer(std::shared_ptr<GlooGroup> group, at::Tensor flat) : group_(std::move(group)), tensor_(std::move(flat)) {}
  at::Tensor tensor() const override { return tensor_; }
  void start(double scale) override;
  void poke() override {}
  void contribute() override {}
  void finish() override;
  /// Whether finish() would not wait.
  bool is_complete() const { return !work_ || work_->isCompleted(); }

private:
  std::shared_ptr<GlooGroup> group_;
  at::Tensor tensor_;
  std::vector<at::Tensor> sent_;
  c10::intrusive_ptr<c10d::Work> work_;
  double scale_ = 1;
};

class GlooCollective : public Collective {
public:
  /// Makes a group for buffers; numbers count up.
  using MakeGroup = std::function<std::shared_ptr<GlooGroup>(std::uint64_t number)>;

  /// The buffers of each begin_buffers() and all other operations go through a group each, formed when it is needed:
  /// their order relative to each other may differ between ranks, and a group knows its operations by their order
  /// alone.
  GlooCollective(std::shared_ptr<GlooGroup> operations, MakeGroup make_group);

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::unique_ptr<ReduceBuffer> make_buffer(std::int64_t elements, at::ScalarType type) override;
  void abort() noexcept override;

  // Without checks, for who has made them. Flat and contiguous tensors, some elements at least.
  void reduce(const at::Tensor& flat, Reduce reduce, double scale);
  void send_to_all(const at::Tensor& flat, int root);
  void gather(const at::Tensor& flat, const std::vector<at::Tensor>& all);
  /// Collective.
  std::unique_ptr<GlooBuffer> make_buffer_over(at::Tensor flat);
  /// A barrier. Throws invalid_argument if the ranks do not mean the same.
  void agree(const Operation& operation);
  /// Buffers go through another group from now on. Others that no buffer is left of are ended: all ranks have come
  /// here.
  void change_group();

protected:
  void reduce_flat(const at::Tensor& flat, Reduce reduce, double scale, const Operation& operation) override;
  void broadcast_flat(const at::Tensor& flat, int root, const Operation& operation) override;
  void gather_flat(const at::Tensor& flat, const std::vector<at::Tensor>& all, const Operation& operation) override;
  void wait_for_all(const Operation& operation) override { agree(operation); }
  void separate_buffers() override;

private:
  const std::shared_ptr<GlooGroup> group_;
  const MakeGroup make_group_;
  std::uint64_t groups_ = 0;
  std::mutex mutex_;
  bool aborted_ = false;
  std::vector<std::shared_ptr<GlooGroup>> buffers_;  // the last one is for new buffers
};

}  // namespace troupe
