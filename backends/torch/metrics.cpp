// SPDX-License-Identifier: Apache-2.0
// Sum, Mean, Accuracy, ConfusionMatrix and F1: counts and sums that are gathered and added in rank order, so that they
// have the same bits on every worker and over every transport.
#include <ATen/Functions.h>
#include <troupe/torch_metrics.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/metric_samples.hpp"
#include "backends/torch/torch_group.hpp"

namespace troupe::train::torch::metrics {
namespace {

constexpr double undefined = std::numeric_limits<double>::quiet_NaN();

template <class Number>
std::vector<Number> sum_over_workers(std::vector<Number> mine) {
  const auto type = c10::CppTypeToScalarType<Number>::value;
  const auto size = static_cast<std::int64_t>(mine.size());
  std::vector<Number> sums(mine.size(), Number{0});
  // With memory of its own: an operation that a lost group leaves behind may still read it.
  const auto values = at::from_blob(mine.data(), {size}, at::TensorOptions(type)).clone();
  for (const auto& theirs : all_gather_values(values))
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += theirs.template data_ptr<Number>()[i];
  return sums;
}

double ratio(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? undefined : static_cast<double>(part) / static_cast<double>(whole);
}

double sum_of(const at::Tensor& values, const char* metric) {
  detail::require_dense_numbers(values, metric, "values");
  return values.detach().sum(at::kDouble).item<double>();
}

}  // namespace

void Sum::update(const at::Tensor& values) { sum_ += sum_of(values, "Sum"); }

double Sum::compute() const { return sum_over_workers<double>({sum_})[0]; }

void Mean::update(double value, double weight) {
  if (!(weight >= 0) || std::isinf(weight))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("Mean::update(): a weight of {} is refused; valid: 0 or more, finite", weight));
  sum_ += weight == 0 ? 0 : value * weight;
  weight_ += weight;
}

void Mean::update(const at::Tensor& values, double weight) {
  const double sum = sum_of(values, "Mean");
  if (values.numel() == 0) return;
  const auto count = static_cast<double>(values.numel());
  update(sum / count, weight * count);
}

double Mean::compute() const {
  const auto sums = sum_over_workers<double>({sum_, weight_});
  return sums[1] == 0 ? undefined : sums[0] / sums[1];
}

void Accuracy::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const auto samples = detail::read_classes("Accuracy", predictions, targets);
  correct_ += samples.predicted.eq(samples.targets).sum().item<std::int64_t>();
  samples_ += samples.targets.numel();
}

void Accuracy::update(std::int64_t correct, std::int64_t samples) {
  if (correct < 0 || correct > samples)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("Accuracy::update(): {} right of {} samples is refused; valid: 0 up to the number of samples",
                    correct, samples));
  correct_ += correct;
  samples_ += samples;
}

double Accuracy::compute() const {
  const auto sums = sum_over_workers<std::int64_t>({correct_, samples_});
  return ratio(sums[0], sums[1]);
}

ConfusionMatrix::ConfusionMatrix(std::int64_t num_classes) : num_classes_(num_classes) {
  if (num_classes < 2 || num_classes > 32768)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a confusion matrix of {} classes is refused; valid: 2 to 32768", num_classes));
  counts_.assign(static_cast<std::size_t>(num_classes * num_classes), 0);
}

void ConfusionMatrix::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const auto samples = detail::read_classes("ConfusionMatrix", predictions, targets, num_classes_);
  const auto* predicted = samples.predicted.data_ptr<std::int64_t>();
  const auto* target = samples.targets.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < samples.targets.numel(); ++i)
    ++counts_[static_cast<std::size_t>(target[i] * num_classes_ + predicted[i])];
}

at::Tensor ConfusionMatrix::compute() const {
  auto sums = sum_over_workers(counts_);
  return at::from_blob(sums.data(), {num_classes_, num_classes_}, at::TensorOptions(at::kLong)).clone();
}

F1::F1(std::int64_t num_classes, Average average) : matrix_(num_classes), average_(average) {
  if (average == Average::binary && num_classes != 2)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("F1 with Average::binary is of two classes, not {}; valid for more: macro, micro", num_classes));
}

double F1::compute() const {
  const auto matrix = matrix_.compute();
  const auto right = matrix.diagonal().contiguous();
  // Twice the right ones and all wrong ones of a class: as target, as prediction, or as both.
  const auto involved = matrix.sum(0).add(matrix.sum(1));
  const auto f1 = [&](std::int64_t of) {
    return ratio(2 * right.data_ptr<std::int64_t>()[of], involved.data_ptr<std::int64_t>()[of]);
  };
  if (average_ == Average::binary) return f1(1);
  if (average_ == Average::micro)
    return ratio(2 * right.sum().item<std::int64_t>(), involved.sum().item<std::int64_t>());
  double sum = 0;
  std::int64_t classes = 0;
  for (std::int64_t of = 0; of < right.numel(); ++of) {
    const double one = f1(of);
    if (std::isnan(one)) continue;
    sum += one;
    ++classes;
  }
  return classes == 0 ? undefined : sum / static_cast<double>(classes);
}

}  // namespace troupe::train::torch::metrics
