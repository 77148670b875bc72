// SPDX-License-Identifier: Apache-2.0
// Collective operations on tensors, whatever carries them. Every rank calls the same ones in the same order; one
// thread at a time. All throw GroupLost once the group is gone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <troupe/torch_collectives.hpp>

#include "backends/torch/operation.hpp"

namespace troupe {

using train::torch::Reduce;

inline bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

/// Halves are scaled before they are summed: the sum of many may be too large for one. Gives what is left to be done to
/// the sum.
inline double scale_before_sum(at::Tensor& values, double scale) {
  if (!is_half(values.scalar_type())) return scale;
  if (scale != 1.0) values.mul_(scale);
  return 1.0;
}

/// A flat piece of memory that is reduced in place, again and again: a gradient bucket.
class ReduceBuffer {
public:
  virtual ~ReduceBuffer() = default;
  /// This rank's elements.
  virtual at::Tensor tensor() const = 0;
  /// Puts `values` into `place`, a part of tensor(), before finish() returns. They must not change until then.
  virtual void put(const at::Tensor& place, const at::Tensor& values) { place.copy_(values); }
  /// This rank's elements are given; they must not be touched until finish() returns. Ranks start their buffers in the
  /// same order.
  virtual void start(double scale) = 0;
  /// Does what can be done without waiting. Called now and then between start() and finish().
  virtual void poke() = 0;
  /// Does all that others wait for, and waits for what that needs. Called after start(), before finish().
  virtual void contribute() = 0;
  /// Waits until the sum over all ranks, times the scale, is in place: the same bits on every rank and in every run.
  virtual void finish() = 0;
};

/// Checks what it is given and leaves the rest to a transport.
class Collective {
public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Where its tensors live.
  virtual c10::Device device() const { return c10::Device(c10::kCPU); }
  /// How large buffers should be.
  virtual std::size_t bucket_bytes() const { return std::size_t{4} << 20; }

  /// In place.
  void all_reduce(at::Tensor& tensor, Reduce reduce = Reduce::sum);
  /// The root's values on every rank, in place.
  void broadcast(at::Tensor& tensor, int root);
  /// One tensor a rank, in rank order.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor);
  // The same with values of the program's own, in host memory whatever device the group works on.
  void broadcast_values(at::Tensor& tensor, int root);
  std::vector<at::Tensor> all_gather_values(const at::Tensor& tensor);
  /// This rank's piece of the sum of `tensor`, which is cut into size() equal pieces along its first dimension.
  at::Tensor reduce_scatter(const at::Tensor& tensor);
  void barrier();
  /// Collective. Buffers made from now on have an order of their own: that of their starts relative to those of earlier
  /// ones may differ between ranks, but for NCCL, whose one communicator pairs all by their order. Gives how often it
  /// was called.
  std::uint64_t begin_buffers() {
    separate_buffers();
    return ++buffer_orders_;
  }
  /// Collective.
  virtual std::unique_ptr<ReduceBuffer> make_buffer(std::int64_t elements, at::ScalarType type) = 0;

  /// From any thread: ends pending operations with GroupLost, and all later ones.
  virtual void abort() noexcept = 0;

protected:
  // The tensors are dense, contiguous and on the right device; the reduction suits their type; a mean comes as a sum
  // and a scale. All ranks must have called with the same `operation`; where that costs little, others are told so.
  virtual void reduce_flat(const at::Tensor& flat, Reduce reduce, double scale, const Operation& operation) = 0;
  virtual void broadcast_flat(const at::Tensor& flat, int root, const Operation& operation) = 0;
  virtual void gather_flat(const at::Tensor& flat, const std::vector<at::Tensor>& all, const Operation& operation) = 0;
  virtual at::Tensor scatter_flat(const at::Tensor& flat, const Operation& operation);
  virtual void wait_for_all(const Operation& operation) = 0;
  virtual void separate_buffers() {}

private:
  void require_usable(const at::Tensor& tensor, const char* caller) const;
  at::Tensor to_group(const at::Tensor& values) const;

  std::uint64_t buffer_orders_ = 0;
};

}  // namespace troupe
