// SPDX-License-Identifier: Apache-2.0
// How long until a train function runs on all workers: from the start of the program, and from a second start().
#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <troupe/trainer.hpp>

#include "bench/cases.hpp"

namespace troupe::bench {
namespace {

constexpr int cold_runs = 11;
constexpr int warm_runs = 21;

std::int64_t first_line() { return now_ns(); }

/// Time from `since_ns` to the first line of the function on the last worker.
double ms_until_all_run(Trainer& trainer, std::int64_t since_ns) {
  std::int64_t last = 0;
  for (const auto& at : trainer.run(fn<first_line>)) last = std::max(last, at.get<std::int64_t>());
  return static_cast<double>(last - since_ns) / 1e6;
}

void cold(const Output& output, int workers) {
  const auto samples = repeat(cold_runs, [&] { return run_probe("startup", workers); });
  output.add({fmt::format("startup.cold.w{}", workers), median(samples), "ms", samples.size(), 600});
}

void warm(const Output& output, int workers) {
  Trainer trainer(trainer_options(workers));
  const auto start_and_run = [&] {
    const auto begin = now_ns();
    trainer.start();
    const double ms = ms_until_all_run(trainer, begin);
    trainer.shutdown();
    return ms;
  };
  start_and_run();  // makes the actor system
  const auto samples = repeat(warm_runs, start_and_run);
  output.add({fmt::format("startup.warm.w{}", workers), median(samples), "ms", samples.size(), 80});
}

}  // namespace

double probe_startup(const ProbeRequest& request) {
  Trainer trainer(trainer_options(request.workers));
  trainer.start();
  return ms_until_all_run(trainer, request.since_ns);
}

void bench_startup(const Output& output) {
  cold(output, 2);
  cold(output, 8);
  warm(output, 8);
}

}  // namespace troupe::bench
