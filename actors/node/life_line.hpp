// SPDX-License-Identifier: Apache-2.0
// One word of memory that a worker shares with its host, and that its main thread holds as a robust lock: the kernel
// marks it in the moment that thread ends. Everything else that tells of a death (exit status, pidfd, the end of a
// socket) comes only after the memory of the process was freed, a tenth of a second later for each gigabyte.
#pragma once

#include <cstdint>
#include <memory>

#include "actors/node/descriptors.hpp"

namespace troupe::node {

/// The host's side: read-only, and of fixed size, so that whatever the worker does with its own cannot hurt us.
class LifeLine {
public:
  struct Ends {
    std::shared_ptr<const LifeLine> line;
    UniqueFd for_worker;
    explicit operator bool() const { return line != nullptr; }
  };
  /// Empty when the system refused (see errno).
  static Ends make();

  explicit LifeLine(const std::uint32_t* word) : word_(word) {}
  LifeLine(const LifeLine&) = delete;
  LifeLine& operator=(const LifeLine&) = delete;
  ~LifeLine();

  const std::uint32_t* word() const { return word_; }
  std::uint32_t value() const;
  static bool tells_death(std::uint32_t value);

private:
  const std::uint32_t* word_;
};

/// The worker's side, on its main thread: from now on its end is seen at once. Without memory for it nothing happens,
/// and the end is seen later.
void hold_life_line(int fd);

}  // namespace troupe::node
