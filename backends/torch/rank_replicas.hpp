// SPDX-License-Identifier: Apache-2.0
// What every rank has of its own: where its random numbers stand, and values that the user named. All else that
// training needs is the same on all ranks. Ranks tell each other with the gradients of each backward(), so who replaces
// a lost rank goes on with what that one had.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/torch/collective.hpp"
#include "runtime/session/session.hpp"

namespace troupe {

/// The generators of this rank's devices, as bytes.
at::Tensor random_state();
void set_random_state(const at::Tensor& bytes);

/// What one rank has of its own.
struct OwnState {
  at::Tensor random;   ///< undefined where ranks share a generator
  std::string values;  ///< encoded
};

class RankReplicas {
public:
  /// Those of a rank; made at the first use.
  static std::shared_ptr<RankReplicas> of(detail::RankData& rank);

  /// Equally on all ranks of a new group: from now on exchange() gathers what `mine` gives.
  void enable(std::function<OwnState()> mine);
  /// exchange() does nothing. What is known stays.
  void disable();
  bool enabled() const { return mine_ != nullptr; }

  /// Collective. What it gathers counts from the next keep() on.
  void exchange(Collective& collective);
  /// In this step.
  bool has_exchanged() const { return !gathered_.empty(); }
  /// The step has ended.
  void keep();
  /// The step did not end.
  void forget() { gathered_.clear(); }
  /// By rank, as of the last keep(); empty if never exchanged.
  const std::vector<OwnState>& kept() const { return kept_; }
  void set_kept(std::vector<OwnState> kept) { kept_ = std::move(kept); }

private:
  at::Tensor packed(const OwnState& state) const;

  std::function<OwnState()> mine_;
  std::int64_t room_ =
      0;  // for the values of a rank, the same on all ranks: tensors that are gathered are equally long
  std::vector<OwnState> gathered_;
  std::vector<OwnState> kept_;
};

}  // namespace troupe
