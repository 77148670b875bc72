// SPDX-License-Identifier: Apache-2.0
// A gradient bucket of ranks of one host. It is cut into pieces that fit into a core's cache, and each piece has an
// owner, who sums it over all ranks and writes the result to all. So a rank copies gradients into the shared memory
// only where others own them, and reads those that it owns itself where backward() has left them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "backends/shm_group.hpp"
#include "backends/torch/collective.hpp"

namespace troupe {

class ShmBuffer : public ReduceBuffer {
public:
  ShmBuffer(std::shared_ptr<ShmGroup> group, std::int64_t elements, at::ScalarType type);

  at::Tensor tensor() const override { return tensor_; }
  void put(const at::Tensor& place, const at::Tensor& values) override;
  void start(double scale) override;
  void poke() override;
  void contribute() override;
  void finish() override;

private:
  std::size_t rank() const { return static_cast<std::size_t>(group_->rank()); }
  std::size_t size() const { return static_cast<std::size_t>(group_->size()); }
  std::byte* part(std::size_t member) const { return region_->part(static_cast<int>(member)); }
  ShmGroup::Counter* counters(std::size_t member) const;
  /// Pieces that a member has shown to the others, in all rounds.
  ShmGroup::Counter& shown(std::size_t member) const { return counters(member)[0]; }
  /// Rounds in which a member has summed all it owns, to name who has not.
  ShmGroup::Counter& ended(std::size_t member) const { return counters(member)[1]; }
  /// That a member has shown this one, and all before it.
  std::uint32_t target(std::size_t piece) const { return base_ + static_cast<std::uint32_t>(piece) + 1; }
  bool is_shown_by_all(std::size_t piece) const;
  void place(std::size_t piece);
  /// This one and all before it.
  void show(std::size_t piece);
  void sum(std::size_t piece);
  void sum_shown();
  void end_if_summed();
  template <class Visit>
  void for_each_run(std::size_t piece, Visit&& visit) const;

  const std::shared_ptr<ShmGroup> group_;
  const at::ScalarType type_;
  const std::size_t bytes_;
  const std::size_t pieces_;  // as many for every member
  const std::size_t piece_bytes_;
  const std::shared_ptr<ShmGroup::Region> region_;
  at::Tensor tensor_;
  std::map<std::size_t, at::Tensor> given_;  // gradients that are not in their places yet, by their first byte
  double scale_ = 1;
  std::uint32_t round_ = 0;
  std::uint32_t base_ = 0;    // pieces of earlier rounds
  std::size_t next_own_ = 0;  // of my pieces, the first that is not summed
};

}  // namespace troupe
