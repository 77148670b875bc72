// SPDX-License-Identifier: Apache-2.0
// Worker processes that stand by: connected, but of no rank yet. One of them takes the place of a lost worker sooner
// than a new process could.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "actors/protocols.hpp"
#include "runtime/engine/failure_policy.hpp"

namespace troupe {

struct Spare {
  std::uint64_t token = 0;
  WorkerActor handle;
  int pid = -1;
  bool is_forked = false;  ///< the Node knows its process
  engine::Time launched{};
};

class SparePool {
public:
  explicit SparePool(int size) : size_(size) {}

  /// How many should be started now. A pool whose processes die as fast as they are made is left empty for a while.
  int wanted(engine::Time now);
  bool is_short() const { return static_cast<int>(spares_.size()) < size_; }
  void add(std::uint64_t token, engine::Time now) {
    spares_.push_back({.token = token, .handle = {}, .launched = now});
  }
  /// Of those that are not connected yet, the one that was launched first.
  const Spare* slowest() const;
  Spare* find(std::uint64_t token);
  /// One that is ready to work; it is of the pool no longer.
  std::optional<Spare> take();
  void remove(std::uint64_t token);
  bool empty() const { return spares_.empty(); }
  const std::vector<Spare>& all() const { return spares_; }
  /// No more are wanted.
  void close() { size_ = 0; }

private:
  int size_;
  std::vector<Spare> spares_;
  engine::RestartWindow starts_{20, std::chrono::seconds(60)};
};

}  // namespace troupe
