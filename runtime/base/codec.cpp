// SPDX-License-Identifier: Apache-2.0
// Fields of a remote call: 4 bytes of length (little endian), then the bytes.
#include <troupe/codec.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include <troupe/error.hpp>

namespace troupe::detail {
namespace {
constexpr std::size_t length_bytes = 4;
}

void append_field(std::string& out, std::string_view bytes) {
  if (bytes.size() > std::numeric_limits<std::uint32_t>::max())
    throw Error(ErrorCode::too_large, fmt::format("an argument or result of a remote call has {} bytes; pass a path to "
                                                  "a file instead",
                                                  bytes.size()));
  for (std::size_t i = 0; i < length_bytes; ++i) out.push_back(static_cast<char>((bytes.size() >> (8 * i)) & 0xff));
  out.append(bytes);
}

std::string_view take_field(std::string_view& rest) {
  std::size_t length = 0;
  const bool has_length = rest.size() >= length_bytes;
  for (std::size_t i = 0; has_length && i < length_bytes; ++i)
    length |= static_cast<std::size_t>(static_cast<unsigned char>(rest[i])) << (8 * i);
  if (!has_length || rest.size() - length_bytes < length)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a remote call's arguments end too early ({} bytes left, {} announced): caller and worker "
                            "disagree about the parameters",
                            rest.size(), length));
  auto field = rest.substr(length_bytes, length);
  rest.remove_prefix(length_bytes + length);
  return field;
}

}  // namespace troupe::detail
