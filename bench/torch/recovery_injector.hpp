// SPDX-License-Identifier: Apache-2.0
// Does harm to a training, again and again, and measures how long it takes until all workers have made a new step.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include <troupe/callback.hpp>
#include <troupe/json.hpp>

namespace troupe::bench {

/// What a rank reports at the end of each step: when, and who it is.
Json step_report(std::int64_t step);

class Injector : public TrainingCallback {
public:
  /// `hang`: the threads that talk to the driver, while the function goes on.
  enum class Fault { kill, stop, exception, hang };

  /// `folder`: where the function and this callback leave words for each other. `rank`: whom it hits; -1: in turn.
  Injector(Fault fault, int injections, std::filesystem::path folder, int rank = -1)
      : fault_(fault), injections_(injections), folder_(std::move(folder)), rank_(rank) {}

  void handle_result(const std::vector<Json>& results, const ResultInfo& info) override;

  /// From the fault to the end of the first new step, of the last worker; in ms.
  const std::vector<double>& recovered() const { return recovered_; }
  /// When the faults happened.
  const std::vector<std::int64_t>& faults() const { return faults_; }
  /// From the fault to the end of the process that it hit.
  const std::vector<double>& gone() const { return gone_; }
  /// Steps that were made once more.
  const std::vector<double>& steps_lost() const { return steps_lost_; }

private:
  void inject(const std::vector<Json>& results);
  void harm(pid_t victim);
  std::int64_t time_of_fault() const;

  Fault fault_;
  int injections_;
  std::filesystem::path folder_;
  int rank_;
  std::size_t workers_ = 0;
  int calm_ = 0;
  int injected_ = 0;
  bool pending_ = false;
  std::int64_t since_ = 0;
  std::int64_t step_ = 0;
  pid_t victim_ = -1;
  std::vector<std::int64_t> faults_;
  std::vector<double> recovered_;
  std::vector<double> gone_;
  std::vector<double> steps_lost_;
};

/// The words: the function throws once when it finds the first, hangs its other threads at the second, ends at the
/// third.
bool told_to_throw(const std::filesystem::path& folder);
bool told_to_hang(const std::filesystem::path& folder);
bool told_to_end(const std::filesystem::path& folder);

/// Every thread of this process but the caller's and the first one hangs in a signal handler.
void hang_other_threads();

}  // namespace troupe::bench
