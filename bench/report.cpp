// SPDX-License-Identifier: Apache-2.0
// What a report costs the training, how many rounds a second reach a callback, and how late one arrives there.
#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <troupe/train.hpp>
#include <troupe/trainer.hpp>

#include "bench/cases.hpp"

namespace troupe::bench {
namespace {

constexpr int workers = 2;

class CountRounds : public TrainingCallback {
public:
  void handle_result(const std::vector<Json>&, const ResultInfo&) override { count_ += 1; }
  std::int64_t count() const { return count_; }

private:
  std::int64_t count_ = 0;
};

/// From the last rank's report() to handle_result(), in ms.
class MeasureLatency : public TrainingCallback {
public:
  void handle_result(const std::vector<Json>& results, const ResultInfo&) override {
    const auto now = now_ns();
    std::int64_t reported = 0;
    for (const auto& metrics : results) reported = std::max(reported, metrics["at"].get<std::int64_t>());
    samples_.push_back(static_cast<double>(now - reported) / 1e6);
  }
  const std::vector<double>& samples() const { return samples_; }

private:
  std::vector<double> samples_;
};

/// Microseconds of each report() in bursts that stay below the credit, building the metrics included.
std::vector<double> time_calls() {
  constexpr std::size_t bursts = 50;
  constexpr std::size_t burst = 256;
  std::vector<double> samples;
  samples.reserve(bursts * burst);
  for (std::size_t i = 0; i < bursts; ++i) {
    for (std::size_t step = 0; step < burst; ++step) {
      const auto begin = now_ns();
      train::report({{"step", step}, {"loss", 0.5}});
      samples.push_back(ms_since(begin) * 1e3);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // credit comes back
  }
  return samples;
}

void report_often(const Config& config) {
  const auto rounds = config["rounds"].get<std::int64_t>();
  for (std::int64_t step = 0; step < rounds; ++step) train::report({{"step", step}, {"loss", 0.5}});
}

void report_now_and_then(const Config& config) {
  const auto rounds = config["rounds"].get<int>();
  for (int step = 0; step < rounds; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    train::report({{"step", step}, {"at", now_ns()}});
  }
}

void call(Trainer& trainer, const Output& output) {
  std::vector<double> samples;
  for (const auto& rank : trainer.run(fn<time_calls>))
    for (double sample : rank.get<std::vector<double>>()) samples.push_back(sample);
  output.add({"report.call", median(samples), "us", samples.size(), 2});
}

void rate(Trainer& trainer, const Output& output) {
  constexpr std::int64_t rounds = 200'000;
  const auto samples = repeat(7, [&] {
    auto counter = std::make_shared<CountRounds>();
    const auto begin = now_ns();
    trainer.run(fn<report_often>, {.config = {{"rounds", rounds}}, .callbacks = {counter}});
    const double ms = ms_since(begin);
    if (counter->count() != rounds) throw std::logic_error("rounds were lost");
    return static_cast<double>(rounds) * 1e3 / ms;
  });
  output.add({"report.rate.w2", median(samples), "rounds/s", samples.size(), 100'000, Figure::Better::higher});
}

void latency(Trainer& trainer, const Output& output) {
  auto measure = std::make_shared<MeasureLatency>();
  trainer.run(fn<report_now_and_then>, {.config = {{"rounds", 2000}}, .callbacks = {measure}});
  const auto& samples = measure->samples();
  output.add({"report.latency.p50", percentile(samples, 0.5), "ms", samples.size(), 0.4});
  output.add({"report.latency.p99", percentile(samples, 0.99), "ms", samples.size(), 3});
}

}  // namespace

void bench_report(const Output& output) {
  Trainer trainer(trainer_options(workers));
  trainer.start();
  call(trainer, output);
  rate(trainer, output);
  latency(trainer, output);
  trainer.shutdown();
}

}  // namespace troupe::bench
