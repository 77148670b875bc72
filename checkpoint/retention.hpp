// SPDX-License-Identifier: Apache-2.0
// Which checkpoints of a run stay: pure bookkeeping, no files.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <troupe/checkpoint_strategy.hpp>

namespace troupe::detail {

/// Throws invalid_option that names the field and its valid values.
void check_strategy(const CheckpointStrategy& strategy);

class Retention {
public:
  explicit Retention(const CheckpointStrategy& strategy);

  /// Whether checkpoints are ranked by their age alone.
  bool by_age() const { return by_age_; }

  /// Notes a committed checkpoint; ids only ever grow. The score is not looked at when ranked by age. NaN is worse than
  /// every number; of equal ones the older is the better. Gives the ids that are not among the best any more, which may
  /// be the new one.
  std::vector<std::uint64_t> add(std::uint64_t id, double score);

  /// It is gone for another reason.
  void forget(std::uint64_t id);

  /// Those that stay, best first.
  std::vector<std::uint64_t> kept() const;
  std::optional<std::uint64_t> best() const;

private:
  struct Entry {
    std::uint64_t id;
    double score;
  };
  bool better(const Entry& left, const Entry& right) const;

  std::optional<std::size_t> limit_;
  bool by_age_;
  bool highest_first_;
  std::vector<Entry> entries_;  // best first
};

}  // namespace troupe::detail
