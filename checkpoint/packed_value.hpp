// SPDX-License-Identifier: Apache-2.0
// A user's value in binary form.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::detail {

struct PackedValue {
  std::string type;
  std::uint32_t version = 0;
  std::string bytes;

  bool operator==(const PackedValue&) const = default;
};

}  // namespace troupe::detail
