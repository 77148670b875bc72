// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include <cmath>

#include "test/integration/support.hpp"

namespace train = troupe::train;
namespace metrics = troupe::train::torch::metrics;
using namespace troupe::test;
using troupe::Json;

namespace {

template <class Metric>
double value_of(Metric metric) {
  return metric.compute();
}

/// A function in local mode: what one worker sees.
template <class Function>
Json alone(Function function) {
  TestTrainer trainer({.backend = "torch", .num_workers = 0});
  return trainer->run(function)[0];
}

at::Tensor classes(std::vector<std::int64_t> values) { return at::tensor(values, at::kLong); }

/// Ten samples of three classes, dealt out unevenly: with two workers rank 0 has seven of them, rank 1 three; with
/// more than two the others have none. Values below are those of scikit-learn for the ten together.
const std::vector<std::int64_t> targets{0, 0, 0, 1, 1, 1, 1, 2, 2, 2};
const std::vector<std::int64_t> predictions{0, 0, 1, 1, 1, 2, 1, 2, 0, 2};

std::pair<std::size_t, std::size_t> my_samples() {
  if (train::world_size() == 1) return {0, 10};
  if (train::world_rank() > 1) return {10, 10};
  return train::world_rank() == 0 ? std::pair<std::size_t, std::size_t>{0, 7}
                                  : std::pair<std::size_t, std::size_t>{7, 10};
}

std::vector<std::int64_t> part(const std::vector<std::int64_t>& all) {
  const auto [from, to] = my_samples();
  return {all.begin() + static_cast<std::ptrdiff_t>(from), all.begin() + static_cast<std::ptrdiff_t>(to)};
}

Json classify() {
  metrics::Accuracy accuracy;
  metrics::ConfusionMatrix matrix(3);
  metrics::F1 macro(3);
  metrics::F1 micro(3, metrics::Average::micro);
  metrics::Mean mean;
  metrics::Sum sum;
  const auto mine = part(targets);
  const auto target = classes(mine);
  const auto predicted = classes(part(predictions));
  accuracy.update(predicted, target);
  // The same samples as scores, in two batches for the matrix.
  const auto scores = at::one_hot(predicted, 3).to(at::kFloat);
  const auto half = target.numel() / 2;
  matrix.update(scores.narrow(0, 0, half), target.narrow(0, 0, half));
  matrix.update(scores.narrow(0, half, target.numel() - half), target.narrow(0, half, target.numel() - half));
  macro.update(predicted, target);
  micro.update(predicted, target);
  mean.update(target);
  for (auto one : mine) sum.update(static_cast<double>(one));
  const auto counts = matrix.compute();
  return {{"accuracy", accuracy.compute()},
          {"matrix", std::vector<std::int64_t>(counts.data_ptr<std::int64_t>(), counts.data_ptr<std::int64_t>() + 9)},
          {"macro", macro.compute()},
          {"micro", micro.compute()},
          {"mean", mean.compute()},
          {"sum", sum.compute()}};
}

void check_classified(const Json& result) {
  DOCTEST_CHECK(result["accuracy"] == 0.7);
  DOCTEST_CHECK(result["matrix"] == Json({2, 1, 0, 0, 3, 1, 1, 0, 2}));
  DOCTEST_CHECK(result["macro"].get<double>() == doctest::Approx((2 / 3.0 + 3 / 4.0 + 2 / 3.0) / 3).epsilon(1e-12));
  DOCTEST_CHECK(result["micro"] == 0.7);
  DOCTEST_CHECK(result["mean"] == 1.0);
  DOCTEST_CHECK(result["sum"] == 10.0);
}

/// Scores with many equal ones and many of their own, by hand: the share of pairs that are in order.
std::pair<std::vector<double>, std::vector<std::int64_t>> scored(int samples) {
  std::vector<double> scores;
  std::vector<std::int64_t> positives;
  for (int i = 0; i < samples; ++i) {
    scores.push_back(((i * 37) % 23) / 8.0 - 1);
    positives.push_back((i * 11) % 7 < 3 ? 1 : 0);
  }
  return {scores, positives};
}

double share_of_pairs(const std::vector<double>& scores, const std::vector<std::int64_t>& positives) {
  double won = 0;
  double pairs = 0;
  for (std::size_t i = 0; i < scores.size(); ++i)
    for (std::size_t j = 0; j < scores.size(); ++j)
      if (positives[i] == 1 && positives[j] == 0) {
        won += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
        pairs += 1;
      }
  return won / pairs;
}

Json area() {
  const auto [scores, positives] = scored(200);
  metrics::AUROC auroc;
  // Rank 0 has twenty samples, rank 1 the rest but two, which come one by one; further ranks have none.
  const auto first = train::world_rank() == 0 ? 0 : 20;
  const auto count = train::world_rank() == 0 ? 20 : train::world_rank() == 1 ? 178 : 0;
  const auto all_scores = at::tensor(scores, at::kDouble);
  auroc.update(all_scores.narrow(0, first, count), classes(positives).narrow(0, first, count));
  if (train::world_rank() == 1)
    for (std::size_t i = 198; i < 200; ++i) auroc.update(scores[i], positives[i] == 1);
  return auroc.compute();
}

void refuse_wrong_samples() {
  const auto refused = [](auto&& call, const char* part) {
    const auto error = error_of(call);
    DOCTEST_CAPTURE(part);
    DOCTEST_CHECK(error.code == troupe::ErrorCode::invalid_argument);
    DOCTEST_CHECK_MESSAGE(error.says(part), error.text);
  };
  metrics::Accuracy accuracy;
  const auto scores = at::rand({4, 3});
  refused([&] { accuracy.update(scores, classes({0, 1, 2})); }, "4 predictions (shape [4, 3]) for 3 targets");
  refused([&] { accuracy.update(scores, classes({0, 1, 2, 3})); }, "targets[3] is 3; valid: 0 to 2");
  refused([&] { accuracy.update(scores, classes({0, -1, 2, 0})); }, "targets[1] is -1");
  refused([&] { accuracy.update(at::rand({4, 1}), classes({0, 1, 1, 0})); }, "squeeze(1)");
  refused([&] { accuracy.update(at::rand({2, 2, 2}), classes({0, 1})); }, "shape [2, 2, 2]");
  refused([&] { accuracy.update(at::ones({}), classes({0})); }, "shape []");
  refused([&] { accuracy.update(scores, at::rand({4, 3})); }, "argmax(1)");
  refused([&] { accuracy.update(scores, at::rand({4})); }, "integers or bools");
  refused([&] { accuracy.update(at::ones({4, 3}, at::kLong), classes({0, 1, 2, 0})); }, "floating point");
  refused([&] { accuracy.update(at::full({1, 2}, NAN), classes({0})); }, "NaN");
  refused([&] { accuracy.update(at::full({1}, NAN), classes({0})); }, "NaN");
  refused([&] { accuracy.update(at::rand({2}), classes({0, 2})); }, "2 classes");
  refused([&] { accuracy.update(at::Tensor(), classes({0})); }, "undefined");
  refused([&] { accuracy.update(5, 4); }, "5 right of 4");
  refused([&] { accuracy.update(-1, 4); }, "-1 right");

  metrics::ConfusionMatrix matrix(3);
  refused([&] { matrix.update(classes({0, 3}), classes({0, 1})); }, "predictions[1] is 3; valid: 0 to 2 (3 classes)");
  refused([&] { matrix.update(at::rand({2, 4}), classes({0, 1})); }, "scores for 4 classes, the metric was made for 3");
  refused([] { metrics::ConfusionMatrix(1); }, "2 to 32768");
  refused([] { metrics::F1(3, metrics::Average::binary); }, "macro, micro");

  metrics::AUROC auroc;
  refused([&] { auroc.update(at::rand({2, 2}), classes({0, 1})); }, "select(1, 1)");
  refused([&] { auroc.update(at::rand({2}), classes({0, 2})); }, "targets[1] is 2; valid: 0 to 1");
  refused([&] { auroc.update(at::full({1}, NAN), classes({1})); }, "NaN");
  refused([&] { auroc.update(NAN, true); }, "NaN");

  metrics::Mean mean;
  refused([&] { mean.update(1, -1); }, "weight of -1");
  refused([&] { mean.update(at::ones({2}).to_sparse()); }, "to_dense()");
  refused([&] { mean.update(at::ones({2}, at::kComplexFloat)); }, "complex");

  // What was refused left nothing behind.
  accuracy.update(1, 2);
  DOCTEST_CHECK(accuracy.compute() == 0.5);
  DOCTEST_CHECK(matrix.compute().sum().item<std::int64_t>() == 0);
  DOCTEST_CHECK(std::isnan(auroc.compute()));
  DOCTEST_CHECK(std::isnan(mean.compute()));
}

}  // namespace

DOCTEST_TEST_CASE("metrics of uneven workers are those of all samples together, with the same bits on all") {
  for (bool shared_memory : {true, false}) {
    DOCTEST_CAPTURE(shared_memory);
    TestTrainer trainer({.backend = troupe::TorchConfig{.shared_memory = shared_memory}, .num_workers = 3});
    const auto results = trainer->run(troupe::fn<classify>);
    check_classified(results[0]);
    DOCTEST_CHECK(results[1] == results[0]);
    DOCTEST_CHECK(results[2] == results[0]);
    const auto areas = trainer->run(troupe::fn<area>);
    const auto [scores, positives] = scored(200);
    DOCTEST_CHECK(areas[0].get<double>() == doctest::Approx(share_of_pairs(scores, positives)).epsilon(1e-12));
    DOCTEST_CHECK(areas[1] == areas[0]);
    DOCTEST_CHECK(areas[2] == areas[0]);
  }
}

DOCTEST_TEST_CASE("metrics work on one worker and in local mode") {
  for (int workers : {0, 1}) {
    TestTrainer trainer({.backend = "torch", .num_workers = workers});
    check_classified(trainer->run(troupe::fn<classify>)[0]);
  }
}

DOCTEST_TEST_CASE("AUROC is exact: known areas, ties, infinite scores, any floating type") {
  const auto results = alone([]() -> Json {
    const auto of = [](std::vector<double> scores, std::vector<std::int64_t> positives, at::ScalarType type) {
      metrics::AUROC auroc;
      auroc.update(at::tensor(scores, at::kDouble).to(type), classes(std::move(positives)).to(at::kBool));
      return auroc.compute();
    };
    return {of({0.1, 0.4, 0.35, 0.8}, {0, 0, 1, 1}, at::kFloat),  // scikit-learn's own example
            of({1, 2, 3, 4}, {0, 0, 1, 1}, at::kHalf), of({1, 2, 3, 4}, {1, 1, 0, 0}, at::kBFloat16),
            of({5, 5, 5, 5}, {1, 0, 1, 0}, at::kDouble), of({-INFINITY, 0, 0, INFINITY}, {0, 1, 0, 1}, at::kDouble)};
  });
  DOCTEST_CHECK(results == Json({0.75, 1.0, 0.0, 0.5, 0.875}));
}

DOCTEST_TEST_CASE("binary F1 is that of class 1, and scores count from one half on") {
  const auto results = alone([]() -> Json {
    metrics::F1 f1(2, metrics::Average::binary);
    metrics::Accuracy accuracy;
    const auto scores = at::tensor(std::vector<float>{0.5F, 0.49F, 0.9F, 0.1F, 0.7F});
    const auto target = classes({1, 1, 1, 0, 0});
    f1.update(scores, target);
    accuracy.update(scores, target.to(at::kBool));
    // Class 3 is nowhere and does not count; class 2 is predicted, never right.
    metrics::F1 macro(4);
    macro.update(classes({0, 0, 2, 1}), classes({0, 0, 1, 1}));
    return {f1.compute(), accuracy.compute(), macro.compute()};
  });
  DOCTEST_CHECK(results[0].get<double>() == doctest::Approx(2.0 / 3));  // 2 right, 1 missed, 1 too many
  DOCTEST_CHECK(results[1] == 0.6);
  DOCTEST_CHECK(results[2].get<double>() == doctest::Approx((1 + 2.0 / 3 + 0) / 3));
}

DOCTEST_TEST_CASE("numbers and weights count as tensors do, and reset begins anew") {
  const auto results = alone([]() -> Json {
    metrics::Mean mean;
    mean.update(10, 3);
    mean.update(at::tensor(std::vector<float>{1, 2, 3}), 2);
    const double first = mean.compute();
    const double again = mean.compute();
    mean.reset();
    mean.update(4);
    metrics::Accuracy accuracy;
    accuracy.update(3, 4);
    accuracy.update(0, 1);
    const double share = accuracy.compute();
    accuracy.reset();
    accuracy.update(1, 1);
    metrics::Sum sum;
    sum.update(at::ones({2, 3}));
    sum.update(0.5);
    const double total = sum.compute();
    sum.reset();
    metrics::AUROC auroc;
    auroc.update(1, false);
    auroc.reset();
    auroc.update(0, true);
    auroc.update(-1, false);
    metrics::ConfusionMatrix matrix(2);
    matrix.update(classes({0, 1}), classes({1, 1}));
    matrix.reset();
    matrix.update(classes({0}), classes({0}));
    metrics::F1 f1(2);
    f1.update(classes({0, 1}), classes({1, 0}));
    f1.reset();
    f1.update(classes({0, 1}), classes({0, 1}));
    return {first,
            again,
            mean.compute(),
            share,
            accuracy.compute(),
            total,
            sum.compute(),
            auroc.compute(),
            matrix.compute().sum().item<double>(),
            f1.compute()};
  });
  DOCTEST_CHECK(results == Json({42 / 9.0, 42 / 9.0, 4.0, 0.6, 1.0, 6.5, 0.0, 1.0, 1.0, 1.0}));
}

DOCTEST_TEST_CASE("metrics of nothing are NaN on every worker, sums 0") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  const auto results = trainer->run([]() -> Json {
    metrics::Mean empty;
    empty.update(at::empty({0}));
    metrics::AUROC one_class;
    one_class.update(0.3, true);
    metrics::F1 no_positives(2, metrics::Average::binary);
    no_positives.update(classes({0, 0}), classes({0, 0}));
    return {value_of(empty),
            value_of(metrics::Accuracy()),
            value_of(metrics::F1(3)),
            value_of(one_class),
            value_of(metrics::AUROC()),
            value_of(no_positives),
            value_of(metrics::Sum()),
            metrics::ConfusionMatrix(2).compute().sum().item<std::int64_t>()};
  });
  for (const auto& result : results) {
    for (std::size_t i = 0; i < 6; ++i) {
      DOCTEST_CAPTURE(i);
      DOCTEST_CHECK(std::isnan(result[i].get<double>()));
    }
    DOCTEST_CHECK(result[6] == 0.0);
    DOCTEST_CHECK(result[7] == 0);
  }
}

DOCTEST_TEST_CASE("a NaN loss shows in the mean of all workers") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  for (const auto& result : trainer->run([]() -> Json {
         metrics::Mean mean;
         mean.update(train::world_rank() == 1 ? NAN : 1.0);
         return mean.compute();
       }))
    DOCTEST_CHECK(std::isnan(result.get<double>()));
}

DOCTEST_TEST_CASE("wrong samples are refused with what is valid, and leave the metric as it was") {
  alone([] { refuse_wrong_samples(); });
}

DOCTEST_TEST_CASE("metrics without a torch backend say which one to choose") {
  const auto error = error_of([] {
    TestTrainer trainer({.num_workers = 1});
    trainer->run([]() -> Json { return value_of(metrics::Mean()); });
  });
  DOCTEST_CHECK(error.says(".backend = \"torch\""));
}
