// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/storage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <troupe/error.hpp>

#include "checkpoint/storage/local_storage.hpp"
#include "checkpoint/storage/s3_storage.hpp"

namespace troupe::storage {

std::unique_ptr<Storage> open_storage(const std::string& location, StorageOptions options) {
  const auto scheme = location.find("://");
  if (location.starts_with("s3://")) return open_s3(location, std::move(options));
  // "s3:/bucket" would become a folder of that name, and nobody would see it before the checkpoints are missed.
  if (location.empty() || scheme != std::string::npos || location.starts_with("s3:"))
    throw Error(
        ErrorCode::invalid_option,
        fmt::format("storage \"{}\" is refused; valid: the path of a folder, or "
                    "s3://bucket/prefix?endpoint=http://host:port&region=name (endpoint and region may be left out)",
                    location));
  return std::make_unique<LocalStorage>(location);
}

void check_key(const std::string& key) {
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" cannot be the key of a stored object: {}", key, why));
  };
  if (key.empty()) refuse("it is empty");
  if (key.size() > 1024) refuse("it is longer than 1024 bytes");
  if (std::any_of(key.begin(), key.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
    refuse("it has control characters");
  for (std::size_t begin = 0; begin <= key.size();) {
    const auto end = std::min(key.find('/', begin), key.size());
    const auto part = std::string_view(key).substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") refuse("its parts must not be empty, \".\" or \"..\"");
    begin = end + 1;
  }
}

}  // namespace troupe::storage
