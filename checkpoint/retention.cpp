// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/retention.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <troupe/error.hpp>

namespace troupe::detail {

void check_strategy(const CheckpointStrategy& strategy) {
  if (strategy.num_to_keep && *strategy.num_to_keep < 0)
    throw Error(
        ErrorCode::invalid_option,
        fmt::format("CheckpointStrategy.num_to_keep = {} is refused; valid: 0 (none on disk), 1 or more, or not "
                    "set (all)",
                    *strategy.num_to_keep));
  if (strategy.checkpoint_score_attribute.empty())
    throw Error(ErrorCode::invalid_option,
                "CheckpointStrategy.checkpoint_score_attribute is empty; valid: the key of a number in the checkpoint, "
                "or \"_timestamp\" (the newest is the best)");
  if (strategy.checkpoint_score_order != "max" && strategy.checkpoint_score_order != "min")
    throw Error(ErrorCode::invalid_option,
                fmt::format("CheckpointStrategy.checkpoint_score_order = \"{}\" is refused; valid: \"max\", \"min\"",
                            strategy.checkpoint_score_order));
}

Retention::Retention(const CheckpointStrategy& strategy)
    : by_age_(strategy.checkpoint_score_attribute == "_timestamp"),
      highest_first_(strategy.checkpoint_score_order == "max") {
  check_strategy(strategy);
  if (strategy.num_to_keep) limit_ = static_cast<std::size_t>(*strategy.num_to_keep);
}

bool Retention::better(const Entry& left, const Entry& right) const {
  if (by_age_) return highest_first_ ? left.id > right.id : left.id < right.id;
  if (std::isnan(left.score) != std::isnan(right.score)) return std::isnan(right.score);
  if (left.score == right.score || std::isnan(left.score)) return left.id < right.id;
  return highest_first_ ? left.score > right.score : left.score < right.score;
}

std::vector<std::uint64_t> Retention::add(std::uint64_t id, double score) {
  const Entry added{id, score};
  const auto place =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& other) { return better(added, other); });
  entries_.insert(place, added);
  std::vector<std::uint64_t> dropped;
  while (limit_ && entries_.size() > *limit_) {
    dropped.push_back(entries_.back().id);
    entries_.pop_back();
  }
  return dropped;
}

void Retention::forget(std::uint64_t id) {
  std::erase_if(entries_, [id](const Entry& entry) { return entry.id == id; });
}

std::vector<std::uint64_t> Retention::kept() const {
  std::vector<std::uint64_t> ids;
  for (const auto& entry : entries_) ids.push_back(entry.id);
  return ids;
}

std::optional<std::uint64_t> Retention::best() const {
  if (entries_.empty()) return std::nullopt;
  return entries_.front().id;
}

}  // namespace troupe::detail
