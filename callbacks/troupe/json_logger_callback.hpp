// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <troupe/callback.hpp>

namespace troupe {

/// Ranks as one writes them: `1`, `{0, 1}`, or std::nullopt for all.
class WorkersToLog : public std::optional<std::vector<int>> {
public:
  WorkersToLog(int rank) : WorkersToLog({rank}) {}  // NOLINT(google-explicit-constructor)
  WorkersToLog(std::initializer_list<int> ranks) : optional(std::vector<int>(ranks)) {}
  WorkersToLog(std::vector<int> ranks) : optional(std::move(ranks)) {}  // NOLINT(google-explicit-constructor)
  WorkersToLog(std::nullopt_t = std::nullopt) {}                        // NOLINT(google-explicit-constructor)
  WorkersToLog(const std::optional<std::vector<int>>& ranks)
      : optional(ranks) {}  // NOLINT(google-explicit-constructor)
};

struct JsonLoggerOptions {
  /// Where the file goes; default: the run's folder.
  std::filesystem::path logdir = {};
  std::string filename = "results.json";
  WorkersToLog workers_to_log = 0;
};

/// Writes a JSON array with one element a round: the list of the logged ranks' metrics. Constant cost a report, and
/// the file is valid JSON at any moment, whatever kills the program (on NFS and other file systems without
/// RENAME_EXCHANGE a kill in the middle of a report can cut its element). Until finish_training() a second copy lies
/// beside it, `.results.json.next`. NaN and infinity are written as null. Two in one run need different filenames.
class JsonLoggerCallback : public TrainingCallback {
public:
  explicit JsonLoggerCallback(JsonLoggerOptions options = {});
  ~JsonLoggerCallback() override;
  void start_training(const TrainingInfo& info) override;
  void handle_result(const std::vector<Json>& results, const ResultInfo& info) override;
  void finish_training(bool error) override;

  /// The file of the current or last run; empty before one.
  const std::filesystem::path& log_path() const { return path_; }

private:
  class File;
  JsonLoggerOptions options_;
  std::filesystem::path path_;
  std::unique_ptr<File> file_;
};

}  // namespace troupe
