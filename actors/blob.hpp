// SPDX-License-Identifier: Apache-2.0
// Values above the message cap travel in parts, ahead of the message that holds their Blob.
#pragma once

#include <atomic>
#include <map>
#include <string>

#include "actors/messages.hpp"

namespace troupe {

/// So much of a value stands in the message itself: of one that has a single value, and of one that has several. Both
/// leave room for what else is in it.
inline constexpr std::size_t blob_bytes = wire::max_message_bytes / 2;
inline constexpr std::size_t shared_blob_bytes = wire::max_message_bytes / 4;

/// Sends the parts of `bytes`, if it needs any, and gives what to put into the message that follows.
template <class Self, class Handle>
wire::Blob send_blob(Self* self, const Handle& to, std::uint64_t token, std::string bytes,
                     std::size_t most_inside = blob_bytes) {
  constexpr std::size_t part_bytes = wire::max_message_bytes * 3 / 4;
  wire::Blob blob;
  blob.size = bytes.size();
  if (bytes.size() <= most_inside) {
    blob.bytes = std::move(bytes);
    return blob;
  }
  static std::atomic<std::uint64_t> next_id{1};
  blob.id = next_id++;
  for (std::size_t at = 0; at < bytes.size(); at += part_bytes)
    compat::tell(self, to, wire::BlobPart{token, blob.id, bytes.substr(at, part_bytes)});
  return blob;
}

/// Parts that wait for their message. Each peer has an inbox of its own, so that its end drops them.
class BlobInbox {
public:
  /// Parts of a value above the limit are dropped; take() then throws.
  void add(const wire::BlobPart& part);
  /// The whole value; throws invalid_argument when parts are missing.
  std::string take(const wire::Blob& blob);

private:
  std::map<std::uint64_t, std::string> parts_;
};

}  // namespace troupe
