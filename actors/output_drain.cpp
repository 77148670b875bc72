// SPDX-License-Identifier: Apache-2.0
#include "actors/output_drain.hpp"

#include <utility>

namespace troupe {

void OutputDrain::wait(const caf::actor_addr& group, const std::vector<node::Token>& living,
                       std::function<void()> then) {
  auto tokens = std::exchange(dead_, {});
  tokens.insert(tokens.end(), living.begin(), living.end());
  if (tokens.empty()) return then();
  const auto ticket = next_ticket_++;
  waiting_[ticket] = {tokens.size(), std::move(then)};
  for (auto token : tokens)
    node::Node::instance().drain(token, [group, ticket] {
      if (auto actor = caf::actor_cast<WorkerGroupActor>(group)) compat::post(actor, local::Drained{ticket});
    });
}

void OutputDrain::drained(std::uint64_t ticket) {
  auto found = waiting_.find(ticket);
  if (found == waiting_.end() || --found->second.left > 0) return;
  auto then = std::move(found->second.then);
  waiting_.erase(found);
  then();
}

}  // namespace troupe
