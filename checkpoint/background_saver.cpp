// SPDX-License-Identifier: Apache-2.0
#include <troupe/background_saver.hpp>

#include <mutex>
#include <optional>
#include <utility>

#include "checkpoint/folder.hpp"
#include "checkpoint/writer.hpp"

namespace troupe {

struct BackgroundSaver::Impl {
  void finish(const std::filesystem::path& folder, const detail::WrittenShard& written) {
    try {
      if (written.error) throw Error(*written.error);
      detail::commit_alone(folder, written.info);
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = error;
    }
  }

  std::mutex mutex;
  std::optional<Error> failure;
  detail::CheckpointWriter writer;  // the last one, so that it ends first
};

BackgroundSaver::BackgroundSaver() : impl_(std::make_unique<Impl>()) {}

BackgroundSaver::~BackgroundSaver() = default;

void BackgroundSaver::save(const Checkpoint& checkpoint, const std::filesystem::path& folder) {
  detail::make_fresh_folder(folder);
  impl_->writer.save(checkpoint, folder / detail::shard_name(0, 0), {},
                     [this, folder](const detail::WrittenShard& written) { impl_->finish(folder, written); });
}

void BackgroundSaver::flush() {
  impl_->writer.flush();
  const std::lock_guard lock(impl_->mutex);
  if (auto failure = std::exchange(impl_->failure, std::nullopt)) throw Error(*failure);
}

}  // namespace troupe
