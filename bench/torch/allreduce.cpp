// SPDX-License-Identifier: Apache-2.0
// allreduce.*: an all-reduce between 2 ranks of this host, over shared memory and, beside it, over Gloo.
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "bench/cases.hpp"

namespace troupe::bench {
namespace {

/// Microseconds of each all-reduce of `bytes` bytes, on this rank.
std::vector<double> measure(const Config& config) {
  const std::int64_t elements = config["bytes"].get<std::int64_t>() / 4;
  const int times = config["times"];
  auto tensor = ::torch::ones({elements});
  std::vector<double> samples;
  for (int i = -3; i < times; ++i) {
    train::torch::barrier();
    const auto begin = now_ns();
    train::torch::all_reduce(tensor, train::torch::Reduce::mean);
    if (i >= 0) samples.push_back(ms_since(begin) * 1e3);
  }
  return samples;
}

std::vector<double> run(bool shared_memory, std::int64_t bytes, int times) {
  auto options = trainer_options(2);
  options.backend = TorchConfig{.shared_memory = shared_memory};
  Trainer trainer(options);
  const auto results = trainer.run(fn<measure>, {.config = {{"bytes", bytes}, {"times", times}}});
  return results[0].get<std::vector<double>>();
}

}  // namespace

void bench_allreduce(const Output& output) {
  struct Case {
    const char* name;
    std::int64_t bytes;
    int times;
    double times_faster;
  };
  for (const auto& one : {Case{"4KB", 4096, 500, 50}, Case{"1MB", 1 << 20, 200, 8}, Case{"64MB", 64 << 20, 20, 4}}) {
    const auto gloo = run(false, one.bytes, one.times);
    const auto shared = run(true, one.bytes, one.times);
    const std::string name = std::string("allreduce.") + one.name;
    output.add({name, median(shared), "us", shared.size(), median(gloo) / one.times_faster, Figure::Better::lower});
    output.add({name + ".gloo", median(gloo), "us", gloo.size(), 0, Figure::Better::higher});
  }
}

}  // namespace troupe::bench
