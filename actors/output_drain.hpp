// SPDX-License-Identifier: Apache-2.0
// Lets a group wait until everything its worker processes wrote so far was printed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "actors/protocols.hpp"

namespace troupe {

class OutputDrain {
public:
  /// A worker died: the next wait is for its last words too.
  void add_dead(node::Token token) { dead_.push_back(token); }

  /// Calls `then` once the output of these workers, and of those that died since the last wait, was printed. `group`
  /// gets a Drained message a worker, and hands it to drained().
  void wait(const caf::actor_addr& group, const std::vector<node::Token>& living, std::function<void()> then);
  void drained(std::uint64_t ticket);

  /// Somebody wants the end: from now on nothing is waited for longer than this. Where it goes may be blocked for ever.
  void limit(engine::Duration patience, engine::Time now);
  void without_limit() { patience_.reset(); }
  /// Calls `then` of those whose time is over.
  void tick(engine::Time now);
  std::optional<engine::Time> deadline() const;

private:
  struct Waiting {
    std::size_t left;
    std::function<void()> then;
    std::optional<engine::Time> until = {};
  };
  void end(std::uint64_t ticket);

  std::optional<engine::Duration> patience_;
  std::uint64_t next_ticket_ = 1;
  std::map<std::uint64_t, Waiting> waiting_;
  std::vector<node::Token> dead_;
};

}  // namespace troupe
