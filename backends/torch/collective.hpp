// SPDX-License-Identifier: Apache-2.0
// Collective operations on CPU tensors, whatever carries them. Every rank calls the same ones in the same order; one
// thread at a time. All throw GroupLost once the group is gone.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace troupe {

/// A flat piece of memory that is reduced in place, again and again: a gradient bucket.
class ReduceBuffer {
public:
  virtual ~ReduceBuffer() = default;
  /// This rank's elements.
  virtual at::Tensor tensor() const = 0;
  /// This rank's elements are in place; they must not be touched until finish() returns.
  virtual void start(double scale) = 0;
  /// Does what can be done without waiting. Called now and then between start() and finish().
  virtual void poke() = 0;
  /// Waits until the sum over all ranks (in rank order, times the scale) is in place: the same bits on every rank.
  virtual void finish() = 0;
};

class Collective {
public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Sum over all ranks times `scale`, in place.
  virtual void all_reduce(at::Tensor& tensor, double scale) = 0;
  /// The root's values on every rank, in place.
  virtual void broadcast(at::Tensor& tensor, int root) = 0;
  /// One tensor a rank, in rank order; all have the shape of `tensor`.
  virtual std::vector<at::Tensor> all_gather(const at::Tensor& tensor) = 0;
  /// This rank's piece of the sum of `tensor`, which is cut into size() equal pieces along its first dimension.
  at::Tensor reduce_scatter(const at::Tensor& tensor);
  virtual void barrier() = 0;
  /// Collective.
  virtual std::unique_ptr<ReduceBuffer> make_buffer(std::int64_t elements, at::ScalarType type) = 0;

  /// From any thread: ends pending operations with GroupLost, and all later ones.
  virtual void abort() noexcept = 0;
};

}  // namespace troupe
