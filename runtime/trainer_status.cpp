// SPDX-License-Identifier: Apache-2.0
#include <troupe/trainer_status.hpp>

#include <algorithm>
#include <ostream>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/table.hpp"

namespace troupe {

std::string TrainerStatus::to_string() const {
  std::string text = fmt::format("{}, {} worker{}", state, world_size, world_size == 1 ? "" : "s");
  if (attempt > 0)
    text += fmt::format(
        ", attempt {}, round {}, generation {}.{}; restarts: {} for lost workers, {} for errors, {} "
        "for preemption",
        attempt, round, generation >> 32U, generation & 0xffffffffU, restarts.lost_workers, restarts.user_errors,
        restarts.preemptions);
  text += "\n";
  if (workers.empty()) return text;
  // Most functions count no steps, and most groups have no straggler.
  const bool steps = std::any_of(workers.begin(), workers.end(), [](const auto& worker) { return worker.step >= 0; });
  const bool slow = std::any_of(workers.begin(), workers.end(), [](const auto& worker) { return worker.slowdown > 0; });
  std::vector<std::string> head = {"rank", "pid", "state", "round"};
  if (steps) head.emplace_back("step");
  if (slow) head.emplace_back("slowdown");
  std::vector<std::vector<std::string>> rows;
  for (const auto& worker : workers) {
    auto& row = rows.emplace_back();
    row = {std::to_string(worker.rank), worker.pid < 0 ? "-" : std::to_string(worker.pid), worker.state,
           std::to_string(worker.round)};
    if (steps) row.push_back(worker.step < 0 ? "-" : std::to_string(worker.step));
    if (slow) row.push_back(worker.slowdown > 0 ? fmt::format("{:.1f}", worker.slowdown) : "-");
  }
  return text + detail::format_table(std::move(head), std::move(rows));
}

std::ostream& operator<<(std::ostream& out, const TrainerStatus& status) { return out << status.to_string(); }

}  // namespace troupe
