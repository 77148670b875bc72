// SPDX-License-Identifier: Apache-2.0
// AUROC, exact: the scores of all workers, in one order. Counted in integers, so no order of samples changes a bit.
#include <ATen/Functions.h>
#include <troupe/torch_metrics.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include <troupe/error.hpp>

#include "backends/torch/gather_unequal.hpp"
#include "backends/torch/metric_samples.hpp"

namespace troupe::train::torch::metrics {
namespace {

struct Sample {
  double score = 0;
  bool positive = false;
};

/// The samples of all workers.
std::vector<Sample> gather(const std::vector<double>& scores, const std::vector<std::uint8_t>& targets) {
  const auto count = static_cast<std::int64_t>(scores.size());
  auto my_scores = at::empty({count}, at::kDouble);
  auto my_targets = at::empty({count}, at::kByte);
  std::copy(scores.begin(), scores.end(), my_scores.data_ptr<double>());
  std::copy(targets.begin(), targets.end(), my_targets.data_ptr<std::uint8_t>());
  const auto all_scores = all_gather_lists(my_scores);
  const auto all_targets = all_gather_lists(my_targets);
  std::vector<Sample> samples;
  for (std::size_t rank = 0; rank < all_scores.size(); ++rank) {
    const auto* score = all_scores[rank].data_ptr<double>();
    const auto* target = all_targets[rank].data_ptr<std::uint8_t>();
    for (std::int64_t i = 0; i < all_scores[rank].numel(); ++i) samples.push_back({score[i], target[i] != 0});
  }
  return samples;
}

}  // namespace

void AUROC::update(const at::Tensor& scores, const at::Tensor& targets) {
  detail::require_dense_numbers(scores, "AUROC", "scores");
  if (scores.dim() != 1)
    throw Error(ErrorCode::invalid_argument,
                "AUROC::update(): scores must have shape [N], one a sample; of two columns give "
                "scores.select(1, 1), of more classes one AUROC each");
  const auto classes = detail::read_targets("AUROC", targets, 2);
  detail::require_same_length("AUROC", scores, classes);
  detail::require_no_nan(scores, "AUROC");
  const auto numbers = scores.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto* score = numbers.data_ptr<double>();
  const auto* target = classes.data_ptr<std::int64_t>();
  scores_.insert(scores_.end(), score, score + numbers.numel());
  for (std::int64_t i = 0; i < classes.numel(); ++i) targets_.push_back(static_cast<std::uint8_t>(target[i]));
}

void AUROC::update(double score, bool target) {
  if (std::isnan(score))
    throw Error(ErrorCode::invalid_argument, "AUROC::update(): a score is NaN; the model or its input is broken");
  scores_.push_back(score);
  targets_.push_back(target ? 1 : 0);
}

double AUROC::compute() const {
  auto samples = gather(scores_, targets_);
  std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.score < b.score; });
  // Pairs of a positive and a negative in which the positive scores higher, twice, so that equal ones count one.
  std::int64_t twice_won = 0;
  std::int64_t positives = 0;
  std::int64_t negatives = 0;
  for (auto from = samples.begin(); from != samples.end();) {
    const auto to = std::find_if(from, samples.end(), [&](const Sample& one) { return one.score != from->score; });
    const auto equal_positives = std::count_if(from, to, [](const Sample& one) { return one.positive; });
    const auto equal_negatives = (to - from) - equal_positives;
    twice_won += equal_positives * (2 * negatives + equal_negatives);
    positives += equal_positives;
    negatives += equal_negatives;
    from = to;
  }
  if (positives == 0 || negatives == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(twice_won) / (2.0 * static_cast<double>(positives) * static_cast<double>(negatives));
}

void AUROC::reset() {
  scores_ = {};
  targets_ = {};
}

}  // namespace troupe::train::torch::metrics
