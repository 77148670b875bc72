// SPDX-License-Identifier: Apache-2.0
// allreduce.*: an all-reduce between 2 ranks of this host, over shared memory and, beside it, over Gloo.
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include <troupe/torch.hpp>
#include <troupe/torch_c10d.hpp>
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
    if (config["shared_memory"].get<bool>()) {
      train::torch::all_reduce(tensor, train::torch::Reduce::sum);
    } else {
      std::vector<at::Tensor> tensors{tensor};  // Gloo itself: our helper would add a check of its own
      train::torch::process_group()->allreduce(tensors)->wait();
    }
    if (i >= 0) samples.push_back(ms_since(begin) * 1e3);
  }
  return samples;
}

/// Workers that talk over one transport. Idle ones cost nothing, so two such groups can take turns.
class Workers {
public:
  explicit Workers(bool shared_memory) : shared_memory_(shared_memory), trainer_(options(shared_memory)) {}
  /// Adds the times of rank 0.
  void add_times(std::vector<double>& times, std::int64_t bytes, int count) {
    const auto results =
        trainer_.run(fn<measure>, {.config = {{"bytes", bytes}, {"times", count}, {"shared_memory", shared_memory_}}});
    for (double time : results[0]) times.push_back(time);
  }

private:
  static TrainerOptions options(bool shared_memory) {
    auto made = trainer_options(2);
    made.backend = TorchConfig{.shared_memory = shared_memory};
    return made;
  }
  bool shared_memory_;
  Trainer trainer_;
};

}  // namespace

void bench_allreduce(const Output& output) {
  struct Case {
    const char* name;
    std::int64_t bytes;
    int times;  // of each of 5 rounds
    double times_faster;
  };
  Workers over_gloo(false);
  Workers over_memory(true);
  for (const auto& one : {Case{"4KB", 4096, 100, 50}, Case{"1MB", 1 << 20, 40, 8}, Case{"64MB", 64 << 20, 4, 4}}) {
    std::vector<double> gloo;
    std::vector<double> shared;
    for (int round = 0; round < 5; ++round) {
      over_gloo.add_times(gloo, one.bytes, one.times);
      over_memory.add_times(shared, one.bytes, one.times);
    }
    const std::string name = std::string("allreduce.") + one.name;
    output.add({name, median(shared), "us", shared.size(), median(gloo) / one.times_faster, Figure::Better::lower});
    output.add({name + ".gloo", median(gloo), "us", gloo.size(), 0, Figure::Better::higher});
  }
}

}  // namespace troupe::bench
