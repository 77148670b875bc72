// SPDX-License-Identifier: Apache-2.0
// A gradient bucket of ranks on several hosts. Each rank sums its share over its host into the leader's part; the
// leader exchanges that with the other leaders while backward() goes on; every rank copies the result into its own
// part.
#pragma once

#include <deque>
#include <memory>

#include <troupe/error.hpp>

#include "backends/shm_group.hpp"
#include "backends/torch/gloo_collective.hpp"

namespace troupe {

class HierarchicalBuffer;

/// Calls what a leader does with the other leaders. When that fails, the ranks of its host still wait for the rest of
/// the operation, and must not take what the leader does next for it.
template <class Call>
void between_hosts(ShmGroup& local, Call&& call) {
  try {
    call();
  } catch (const GroupLost&) {
    local.leave_step(true);
    throw;
  } catch (...) {
    local.leave_step(false);
    throw;
  }
}

/// Buffers of a leader that belong to one model, in the order in which they were started. All leaders hand them to Gloo
/// in this order, whenever their hosts are ready.
class LaunchOrder {
public:
  void add(HierarchicalBuffer* buffer) { waiting_.push_back(buffer); }
  void remove(HierarchicalBuffer* buffer) { std::erase(waiting_, buffer); }
  /// Those whose host is ready, without waiting.
  void launch_ready();
  /// Waits for the hosts' ranks until `buffer` is launched.
  void launch_until(HierarchicalBuffer* buffer);

private:
  std::deque<HierarchicalBuffer*> waiting_;
};

class HierarchicalBuffer : public ReduceBuffer {
public:
  /// `between`: leaders only.
  HierarchicalBuffer(std::shared_ptr<ShmGroup> local, GlooCollective* between, std::shared_ptr<LaunchOrder> order,
                     std::int64_t elements, at::ScalarType type);
  ~HierarchicalBuffer() override { order_->remove(this); }

  at::Tensor tensor() const override { return tensor_; }
  void start(double scale) override;
  void poke() override;
  void contribute() override;
  void finish() override;

private:
  friend class LaunchOrder;
  /// The round in which a member has come to a step last, to name who has not.
  ShmGroup::Counter& came(int member, std::size_t step) const;
  void arrive(std::size_t step);
  /// Whether members from `begin` to `end` have come to a step of this round.
  bool have_come(std::size_t step, int begin, int end) const;
  void wait(std::size_t step, int begin, int end);
  void wait_for_all(std::size_t step) { wait(step, 0, local_->size()); }
  /// Whether the sum over this host lies in the leader's part.
  bool is_summed() const;
  void sum_share();
  void launch();
  void publish();
  void take();

  const std::shared_ptr<ShmGroup> local_;
  const std::shared_ptr<LaunchOrder> order_;
  const at::ScalarType type_;
  const std::size_t bytes_;
  const std::shared_ptr<ShmGroup::Region> region_;
  at::Tensor tensor_;
  std::unique_ptr<GlooBuffer> between_;
  double scale_ = 1;
  std::uint32_t round_ = 0;
  // What is left to do in this round.
  bool shared_ = true;
  bool launched_ = true;
  bool settled_ = true;
};

}  // namespace troupe
