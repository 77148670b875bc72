// SPDX-License-Identifier: Apache-2.0
// Saves checkpoints to folders while the program goes on. Inside a run, train::save_checkpoint() does this by itself.
#pragma once

#include <filesystem>
#include <memory>

#include <troupe/checkpoint.hpp>

namespace troupe {

/// One checkpoint is being written, one waits; a third save() waits for the first.
class BackgroundSaver {
public:
  BackgroundSaver();
  /// Finishes what was saved.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  /// Returns when the checkpoint is copied into memory; it is written and committed behind. `folder` must be new.
  void save(const Checkpoint& checkpoint, const std::filesystem::path& folder);
  /// Returns when all are on disk; throws the first error (io) since the last flush().
  void flush();

private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
