// SPDX-License-Identifier: Apache-2.0
// run.json: what a run was, written when it begins and again when it ends.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <troupe/json.hpp>

#include "actors/protocols.hpp"
#include "actors/run.hpp"
#include "runtime/base/settings.hpp"

namespace troupe {

/// How long the parts of start() took.
struct StartTimings {
  double actor_system_ms = 0;
  double workers_ms = 0;
};

class RunFile {
public:
  RunFile(const std::filesystem::path& directory, const detail::Settings& settings, const detail::RunSpec& run,
          Json config, const std::vector<local::GroupView::Row>& workers, StartTimings timings);
  /// Writes the outcome. `workers`: those of the last attempt.
  void finish(const detail::RunResult& result, const std::vector<local::GroupView::Row>& workers,
              const detail::CheckpointKeeper& keeper);

private:
  void set_ranks(const std::vector<local::GroupView::Row>& workers);
  void write() const;

  std::filesystem::path path_;
  Json content_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

/// "succeeded", "failed" ...
const char* status_name(engine::RunStatus status);

/// The run.json of a run. Throws invalid_argument when the folder holds no run.
Json read_run_file(const std::filesystem::path& directory);

}  // namespace troupe
