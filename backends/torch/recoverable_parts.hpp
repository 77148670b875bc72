// SPDX-License-Identifier: Apache-2.0
// The things a Recoverable is made of: what each is made of, and what of it a step changes before the optimizer does.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <troupe/checkpoint.hpp>
#include <troupe/torch_recoverable.hpp>

namespace troupe::train::torch::detail {

class RecoverablePart {
public:
  virtual ~RecoverablePart() = default;
  /// Everything. Tensors share their memory.
  virtual CheckpointItem state() const = 0;
  virtual void load(const CheckpointItem& state) = 0;
  /// A step begins: remembers what it may change, but for parameters and what the optimizer has.
  virtual void keep() = 0;
  /// The step did not end: back to what keep() remembers.
  virtual void restore() = 0;
  /// Parameters, or what the optimizer remembers, have changed since keep(): restore() is not enough.
  virtual bool touched() const { return false; }
  /// A step of the optimizer may have been made without touched() seeing it. With these parameters none was.
  virtual bool is_blind(const std::set<const at::TensorImpl*>& /*not_stepped*/) const { return false; }
  /// The group was formed anew, maybe with other ranks.
  virtual void rejoined(ElasticBatch /*batch*/) {}
  /// A checksum of a sample of the parameters, after `previous`.
  virtual std::uint32_t digest(std::uint32_t previous) const { return previous; }
  /// Of a loader: the epoch it is in.
  virtual std::optional<std::int64_t> epoch() const { return std::nullopt; }
};

}  // namespace troupe::train::torch::detail
