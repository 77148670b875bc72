// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/thread_turns.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace troupe::detail {
namespace {

/// The kernel's struct sched_attr, as it was at first: the C library of Debian 12 has none.
struct Attributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t turn_ns;  // of ordinary threads
  std::uint64_t deadline;
  std::uint64_t period;
};

constexpr std::uint64_t shortest_turn_ns = 100'000;  // the kernel's limit
constexpr std::uint64_t usual_turn = 0;

void set_turn(std::uint64_t ns) noexcept {
  Attributes attributes{};
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != 0) return;  // somebody has chosen another one
  attributes.flags = 0;
  attributes.turn_ns = ns;
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);  // a wish
}

}  // namespace

void take_short_turns() noexcept { set_turn(shortest_turn_ns); }
void take_usual_turns() noexcept { set_turn(usual_turn); }

}  // namespace troupe::detail
