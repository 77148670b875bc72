// SPDX-License-Identifier: Apache-2.0
#include "actors/blob.hpp"

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "runtime/session/session.hpp"

namespace troupe {
namespace {

/// A payload and the little that may stand around it.
constexpr std::size_t max_blob_bytes = detail::max_payload_bytes + (std::size_t{1} << 20);

}  // namespace

void BlobInbox::add(const wire::BlobPart& part) {
  auto& bytes = parts_[part.id];
  if (bytes.size() + part.bytes.size() <= max_blob_bytes) bytes += part.bytes;
}

std::string BlobInbox::take(const wire::Blob& blob) {
  if (blob.id == 0) return blob.bytes;
  auto found = parts_.find(blob.id);
  std::string bytes;
  if (found != parts_.end()) {
    bytes = std::move(found->second);
    parts_.erase(found);
  }
  if (bytes.size() != blob.size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a value of {} bytes arrived with {} bytes", blob.size, bytes.size()));
  return bytes;
}

}  // namespace troupe
