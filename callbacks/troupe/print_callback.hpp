// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>

#include <troupe/callback.hpp>

namespace troupe {

/// Prints every round as JSON with an indent of four.
class PrintCallback : public TrainingCallback {
public:
  /// To standard output, or to `out`, which must outlive the run.
  PrintCallback();
  explicit PrintCallback(std::ostream& out) : out_(&out) {}
  void handle_result(const std::vector<Json>& results, const ResultInfo& info) override;

private:
  std::ostream* out_;
};

}  // namespace troupe
