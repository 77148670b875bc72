// SPDX-License-Identifier: Apache-2.0
// What Gloo and c10d throw has no codes, only text.
#pragma once

#include <exception>
#include <string_view>

namespace troupe::detail {

/// An operation took too long. Gloo closes its connections then, so that they say nothing of other ranks' lives. A
/// connection that the system gave up (ETIMEDOUT) is another thing: its other end, or the network, is gone.
inline bool says_timed_out(const std::exception& error) {
  const std::string_view text(error.what());
  return text.find("imed out") != text.npos && text.find("Connection timed out") == text.npos;
}

}  // namespace troupe::detail
