// SPDX-License-Identifier: Apache-2.0
#include "actors/node/descriptor_channel.hpp"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <troupe/error.hpp>

namespace troupe::node {

namespace {

/// False: the time is over.
bool wait_readable(int fd, std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    pollfd entry{fd, POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30)));
    if (ready >= 0 || errno != EINTR) {
      return ready > 0;
    }
  }
}

}  // namespace

void send_descriptor(int channel, int to_rank, int fd) {
  const int fds[] = {fd};
  if (!send_message(channel, DescriptorHeader{to_rank}, fds)) {
    throw Error(ErrorCode::io, fmt::format("cannot send descriptor {} to rank {}: {}. Is it open, and is the host "
                                           "program still running?",
                                           fd, to_rank, std::strerror(errno)));
  }
}

std::optional<ReceivedDescriptor> receive_descriptor(int channel, std::chrono::milliseconds timeout) {
  if (!wait_readable(channel, timeout)) {
    return std::nullopt;
  }
  DescriptorHeader header;
  auto received = receive_message(channel, header);
  if (received.size != sizeof header) {
    throw Error(ErrorCode::io, "the descriptor channel to the host program is closed: the host program has ended");
  }
  if (received.fds.empty()) {
    throw Error(ErrorCode::io, fmt::format("a descriptor from rank {} got lost: this process has no descriptors left. "
                                           "Raise the limit (ulimit -n) or close some.",
                                           header.peer));
  }
  return ReceivedDescriptor{header.peer, std::move(received.fds.front())};
}

}  // namespace troupe::node
