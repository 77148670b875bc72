// SPDX-License-Identifier: Apache-2.0
#include "actors/output_drain.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

void OutputDrain::wait(const caf::actor_addr& group, const std::vector<node::Token>& living,
                       std::function<void()> then) {
  auto tokens = std::exchange(dead_, {});
  tokens.insert(tokens.end(), living.begin(), living.end());
  if (tokens.empty()) return then();
  const auto ticket = next_ticket_++;
  waiting_[ticket] = {tokens.size(), std::move(then)};
  if (patience_) waiting_[ticket].until = engine::Clock::now() + *patience_;
  for (auto token : tokens)
    node::Node::instance().drain(token, [group, ticket] {
      if (auto actor = caf::actor_cast<WorkerGroupActor>(group)) compat::post(actor, local::Drained{ticket});
    });
}

void OutputDrain::drained(std::uint64_t ticket) {
  auto found = waiting_.find(ticket);
  if (found != waiting_.end() && --found->second.left == 0) end(ticket);
}

void OutputDrain::end(std::uint64_t ticket) {
  if (auto over = waiting_.extract(ticket)) over.mapped().then();
}

void OutputDrain::limit(engine::Duration patience, engine::Time now) {
  patience_ = patience;
  for (auto& [ticket, one] : waiting_) one.until = std::min(one.until.value_or(now + patience), now + patience);
}

void OutputDrain::tick(engine::Time now) {
  std::vector<std::uint64_t> late;
  for (const auto& [ticket, one] : waiting_)
    if (one.until && now >= *one.until) late.push_back(ticket);
  for (auto ticket : late) end(ticket);
}

std::optional<engine::Time> OutputDrain::deadline() const {
  std::optional<engine::Time> next;
  for (const auto& [ticket, one] : waiting_)
    if (one.until && (!next || *one.until < *next)) next = one.until;
  return next;
}

}  // namespace troupe
