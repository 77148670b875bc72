// SPDX-License-Identifier: Apache-2.0
// Looks into what a GroupMachine wants done.
#pragma once

#include <variant>
#include <vector>

#include "runtime/engine/group_machine.hpp"

namespace troupe::engine {

using Ranks = std::vector<int>;

/// Of all actions of that kind, in order.
template <class Action>
Ranks ranks_of(const GroupActions& actions) {
  Ranks ranks;
  for (const auto& action : actions)
    if (const auto* one = std::get_if<Action>(&action)) ranks.push_back(one->rank);
  return ranks;
}

/// The first of that kind, or null.
template <class Action>
const Action* find(const GroupActions& actions) {
  for (const auto& action : actions)
    if (const auto* one = std::get_if<Action>(&action)) return one;
  return nullptr;
}

}  // namespace troupe::engine
