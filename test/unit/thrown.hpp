// SPDX-License-Identifier: Apache-2.0
// Looks at the troupe::Error that a call throws.
#pragma once

#include <string>

#include <troupe/error.hpp>

namespace troupe::test {

/// "code: text" of the Error thrown, or "nothing". Other exceptions pass.
template <class F>
std::string thrown_by(F&& function) {
  try {
    function();
  } catch (const Error& error) {
    return std::string(to_string(error.code())) + ": " + error.what();
  }
  return "nothing";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace troupe::test
