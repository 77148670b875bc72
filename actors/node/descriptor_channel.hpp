// SPDX-License-Identifier: Apache-2.0
// A worker's side of its descriptor channel: hands a descriptor (a memfd, say) to another rank of its group. The Node
// passes it on.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "actors/node/descriptors.hpp"

namespace troupe::node {

/// What travels beside a descriptor: the rank it goes to (worker to Node) or comes from (Node to worker).
struct DescriptorHeader {
  std::int32_t peer = 0;
};

struct ReceivedDescriptor {
  int from_rank = 0;
  UniqueFd fd;
};

/// Sends a copy of `fd`; the caller keeps its own. `channel` is WorkerStart::descriptors. Throws Error(io). A rank that
/// is not there (any more) does not get it: agree on the receipt by message.
void send_descriptor(int channel, int to_rank, int fd);
/// Waits for the next descriptor from any rank; empty when none came in time. Throws Error(io).
std::optional<ReceivedDescriptor> receive_descriptor(int channel, std::chrono::milliseconds timeout);

}  // namespace troupe::node
