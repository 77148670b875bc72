// SPDX-License-Identifier: Apache-2.0
#include "bench/torch/torchrun.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>

namespace troupe::bench {
namespace {

/// What a shell command prints; throws when it fails.
std::string output_of(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot run " + command);
  std::string text;
  std::array<char, 4096> piece;
  while (const auto length = std::fread(piece.data(), 1, piece.size(), pipe)) text.append(piece.data(), length);
  if (::pclose(pipe) != 0) throw std::runtime_error("this failed: " + command);
  return text;
}

std::string quoted(const std::string& word) { return "'" + word + "'"; }

std::string python_command() {
  const char* chosen = std::getenv("TROUPE_BENCH_PYTHON");
  return quoted(chosen ? chosen : "python3");
}

}  // namespace

Json run_peer(const std::string& script, const std::vector<std::string>& arguments) {
  auto command =
      "OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo " + python_command() + " " + TROUPE_BENCH_PEERS + "/" + script;
  for (const auto& argument : arguments) command += " " + quoted(argument);
  const auto text = output_of(command);
  return text.empty() ? Json::array() : Json::parse(text);
}

Json run_torchrun(const std::vector<std::string>& cases) {
  const auto python = python_command();
  if (std::system((python + " -c 'import torch.distributed' 2>/dev/null").c_str()) != 0) {
    std::cerr << "torchrun is left out: " << python << " has no torch (set TROUPE_BENCH_PYTHON to one that has)\n";
    return Json::object();
  }
  std::string command = "OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo " + python +
                        " -m torch.distributed.run --standalone --nproc-per-node=2 " + TROUPE_BENCH_PEERS +
                        "/torchrun_ddp.py";
  for (const auto& one : cases) command += " " + quoted(one);
  return Json::parse(output_of(command + " 2>/dev/null"));
}

}  // namespace troupe::bench
