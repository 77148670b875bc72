// SPDX-License-Identifier: Apache-2.0
// What a run that goes on in a folder finds there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "checkpoint/folder.hpp"
#include "checkpoint/scan.hpp"

namespace troupe::test {

struct LoadedCheckpoint {
  detail::CommittedCheckpoint found;
  Checkpoint checkpoint;             ///< of the whole; every byte was checked
  std::vector<std::string> skipped;  ///< newer ones that are damaged, and why
};

/// The newest checkpoint in `parent` of which every byte is right; nothing if there is none.
inline std::optional<LoadedCheckpoint> load_latest(const std::filesystem::path& parent) {
  std::vector<std::string> skipped;
  for (auto& found : detail::scan(parent, &skipped)) {
    try {
      const auto folder = detail::CheckpointFolder::open(found.path);
      folder->verify();
      auto checkpoint = folder->part(0, 1);
      return LoadedCheckpoint{std::move(found), std::move(checkpoint), std::move(skipped)};
    } catch (const Error& error) {
      skipped.emplace_back(error.what());
    }
  }
  return std::nullopt;
}

}  // namespace troupe::test
