// SPDX-License-Identifier: Apache-2.0
// What Gloo and c10d throw has no codes, only text.
#pragma once

#include <exception>
#include <string_view>

namespace troupe::detail {

/// An operation took too long. Gloo closes its connections then, so that they say nothing of other ranks' lives.
inline bool says_timed_out(const std::exception& error) {
  return std::string_view(error.what()).find("imed out") != std::string_view::npos;
}

}  // namespace troupe::detail
