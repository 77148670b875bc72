// SPDX-License-Identifier: Apache-2.0
// Metrics over all workers. Each has update() for this worker's samples, compute() for the value over the samples of
// all workers, and reset(). compute() is collective: every worker calls it, and every worker gets the same bits,
// however many samples each has seen; it changes nothing, so more updates may follow. A metric of no samples at all is
// NaN (a sum 0, a confusion matrix all zeros). Wrong shapes, classes that are out of range and NaN scores throw
// invalid_argument in update(), on the worker that has them, and leave the metric as it was.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troupe::train::torch::metrics {

/// The sum of all values.
class Sum {
public:
  void update(double value) { sum_ += value; }
  /// Adds all elements.
  void update(const at::Tensor& values);
  double compute() const;
  void reset() { sum_ = 0; }

private:
  double sum_ = 0;
};

/// The mean of all values, each as often as its weight says: `mean.update(loss.item<double>(), batch_size)`.
class Mean {
public:
  /// Throws invalid_argument for a weight that is negative or not finite.
  void update(double value, double weight = 1);
  /// All elements, each with this weight.
  void update(const at::Tensor& values, double weight = 1);
  double compute() const;
  void reset() { sum_ = weight_ = 0; }

private:
  double sum_ = 0;
  double weight_ = 0;
};

// What classification metrics take as predictions, with one target class a sample (integers or bools, shape [N]):
//   scores of each class, shape [N, classes]: the class with the largest wins, the first of equals;
//   one score a sample, shape [N], floating point: class 1 from 0.5 on, else class 0;
//   classes, shape [N], integers or bools.

/// The share of samples whose predicted class is the target.
class Accuracy {
public:
  void update(const at::Tensor& predictions, const at::Tensor& targets);
  /// So many samples, so many of them right.
  void update(std::int64_t correct, std::int64_t samples);
  double compute() const;
  void reset() { correct_ = samples_ = 0; }

private:
  std::int64_t correct_ = 0;
  std::int64_t samples_ = 0;
};

/// How often each class was taken for each: row = target, column = prediction.
class ConfusionMatrix {
public:
  /// Throws invalid_argument below 2 classes and above 32768.
  explicit ConfusionMatrix(std::int64_t num_classes);

  void update(const at::Tensor& predictions, const at::Tensor& targets);
  /// Counts, shape [classes, classes], 64-bit integers.
  at::Tensor compute() const;
  void reset() { counts_.assign(counts_.size(), 0); }

private:
  std::int64_t num_classes_;
  std::vector<std::int64_t> counts_;
};

/// How F1 is taken from the classes' counts.
enum class Average {
  macro,   ///< the mean of the classes' F1; classes that are neither target nor prediction anywhere do not count
  micro,   ///< from the sum of all classes' counts; with one class a sample it is the accuracy
  binary,  ///< of class 1 alone, of two
};

/// The harmonic mean of precision and recall.
class F1 {
public:
  /// Throws invalid_argument for Average::binary with other than two classes.
  explicit F1(std::int64_t num_classes, Average average = Average::macro);

  void update(const at::Tensor& predictions, const at::Tensor& targets) { matrix_.update(predictions, targets); }
  /// A class that is never predicted right has an F1 of 0. NaN: no samples, or for `binary` class 1 neither as target
  /// nor as prediction.
  double compute() const;
  void reset() { matrix_.reset(); }

private:
  ConfusionMatrix matrix_;
  Average average_;
};

/// The area under the receiver operating characteristic of two classes: how likely a sample of class 1 scores above one
/// of class 0 (equal scores count half). Exact, from all samples: update() keeps 9 bytes a sample; compute() needs
/// about 40 bytes for each sample of all workers, on every worker, while it works.
class AUROC {
public:
  /// `scores`: the more, the likelier class 1; any numbers but NaN, shape [N]. `targets`: 0 and 1, shape [N].
  void update(const at::Tensor& scores, const at::Tensor& targets);
  void update(double score, bool target);
  /// NaN while one of the classes is missing.
  double compute() const;
  void reset();

private:
  std::vector<double> scores_;
  std::vector<std::uint8_t> targets_;
};

}  // namespace troupe::train::torch::metrics
