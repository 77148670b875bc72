// SPDX-License-Identifier: Apache-2.0
// Calls on a stateful worker: one at a time, and many in flight.
#include <deque>
#include <future>

#include <troupe/trainer.hpp>

#include "bench/cases.hpp"

namespace troupe::bench {
namespace {

struct Counter {
  int value = 0;
};

constexpr auto add = [](Counter& counter, int amount) { return counter.value += amount; };

void round_trip(Trainer& trainer, const Output& output) {
  const auto call = [&] {
    const auto begin = now_ns();
    trainer.execute_single(add, 1);
    return ms_since(begin) * 1e3;
  };
  repeat(200, call);  // warms up
  const auto samples = repeat(5000, call);
  output.add({"calls.roundtrip", median(samples), "us", samples.size(), 200});
}

/// Calls a second on one worker, `in_flight` at any time.
double rate_of(const WorkerHandle& worker, int calls, std::size_t in_flight) {
  std::deque<std::future<int>> pending;
  const auto begin = now_ns();
  for (int i = 0; i < calls; ++i) {
    if (pending.size() == in_flight) {
      pending.front().get();
      pending.pop_front();
    }
    pending.push_back(worker.submit(add, 1));
  }
  for (auto& one : pending) one.get();
  return calls * 1e9 / static_cast<double>(now_ns() - begin);
}

}  // namespace

void bench_calls(const Output& output) {
  Trainer trainer(trainer_options(2));
  trainer.start<Counter>();
  round_trip(trainer, output);
  const auto rates = repeat(7, [&] { return rate_of(trainer.workers()[0], 50'000, 64); });
  output.add({"calls.rate", median(rates), "calls/s", rates.size(), 30'000, Figure::Better::higher});
  trainer.shutdown();
}

}  // namespace troupe::bench
