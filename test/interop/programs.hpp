// SPDX-License-Identifier: Apache-2.0
// Runs programs: Python ones, which know the formats from the other side, and our own command line.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "test/support/skip.hpp"

namespace troupe::test {

struct ProgramResult {
  int status = -1;     ///< exit code
  std::string output;  ///< of both streams
};

inline ProgramResult run_program(const std::string& command) {
  ProgramResult result;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer{};
  while (const auto count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    result.output.append(buffer.data(), count);
  const int status = ::pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

/// `script` is a file in this folder.
inline ProgramResult run_python(const std::string& python, const std::string& script, const std::string& arguments) {
  return run_program("'" + python + "' '" TROUPE_SOURCE_DIR "/test/interop/" + script + "' " + arguments);
}

/// The Python whose torch is used: TROUPE_TORCH_PYTHON, else Debian's. Empty if there is none: the test is skipped.
inline std::string torch_python() {
  const char* given = std::getenv("TROUPE_TORCH_PYTHON");
  const std::string python = given != nullptr ? given : "/usr/bin/python3";
  if (run_python(python, "torch_files.py", "version").status == 0) return python;
  skip(python + " has no torch (apt-get install python3-torch)");
  return {};
}

}  // namespace troupe::test
