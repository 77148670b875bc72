// SPDX-License-Identifier: Apache-2.0
// Versions of what a program is made of, for run.json. Who links a library that others do without adds it before
// main().
#pragma once

#include <string>

#include <troupe/json.hpp>

namespace troupe::detail {

inline Json& linked_versions() {
  static Json versions = Json::object();
  return versions;
}

inline bool add_version(const std::string& library, const std::string& version) {
  linked_versions()[library] = version;
  return true;
}

}  // namespace troupe::detail
