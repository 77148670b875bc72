// SPDX-License-Identifier: Apache-2.0
// Watches the life lines of many workers, and says which of them has begun to die. One thread waits for up to 127 of
// them; where the kernel cannot do that (before 5.16), each line has a thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "actors/node/futex.hpp"
#include "actors/node/life_line.hpp"
#include "actors/node/node.hpp"

namespace troupe::node {

class DeathWatch {
public:
  /// Lines that one thread can wait for: all that the kernel takes, but for our own word.
  static constexpr std::size_t most_lines = FUTEX_WAITV_MAX - 1;

  /// `on_death` is called on a thread of the watch, once for a token at most.
  explicit DeathWatch(std::function<void(Token)> on_death,
                      std::size_t lines_per_thread = can_wait_for_any() ? most_lines : 1);
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;
  ~DeathWatch();

  /// Throws Error(start_failed) when no thread can be had.
  void add(Token token, const std::shared_ptr<const LifeLine>& line);
  /// Its death is of no interest any more; a call that is under way may still come.
  void remove(Token token);

private:
  class Bank;

  const std::function<void(Token)> on_death_;
  const std::size_t lines_per_thread_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Bank>> banks_;
};

}  // namespace troupe::node
