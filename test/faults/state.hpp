// SPDX-License-Identifier: Apache-2.0
// What the saver saves and the test expects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>
#include <troupe/checkpoint_strategy.hpp>

namespace troupe::test {

inline Checkpoint state(std::uint64_t id, std::size_t size) {
  return {{"epoch", id},
          {"model", {{"w", TensorData::of(std::vector<std::uint64_t>(size / 8, id))}}},
          {"name", "number " + std::to_string(id)}};
}

/// The same as a folder of files.
inline std::filesystem::path make_files(const std::filesystem::path& parent, std::uint64_t id) {
  const auto folder = parent / ("files " + std::to_string(id));
  std::filesystem::create_directories(folder / "deep");
  std::ofstream(folder / "model") << "number " << id;
  std::ofstream(folder / "deep" / "more") << std::string(5000, static_cast<char>('0' + id));
  return folder;
}

inline CheckpointStrategy best_one() {
  return {.num_to_keep = 1, .checkpoint_score_attribute = "loss", .checkpoint_score_order = "min"};
}

}  // namespace troupe::test
