// SPDX-License-Identifier: Apache-2.0
// Everything that carries collectives, for tests that hold for all of it. One more transport is one more line here.
#pragma once

#include <string>
#include <vector>

#include <troupe/torch_config.hpp>

#include "backends/torch/nccl.hpp"
#include "runtime/base/host.hpp"
#include "test/integration/support.hpp"
#include "test/support/skip.hpp"

namespace troupe::test {

struct Transport {
  const char* name;
  TorchConfig config;
};

/// Those of the CPU.
inline std::vector<Transport> transports() {
  return {{"shared memory", {.timeout_s = 20}},
          {"gloo", {.timeout_s = 20, .shared_memory = false}},
          {"two hosts", {.timeout_s = 20, .pretend_hosts = 2}}};
}

/// Why NCCL cannot carry a group of so many workers here; empty if it can.
inline std::string why_not_nccl(int workers) {
  if (!nccl_is_compiled_in()) return "built without TROUPE_WITH_NCCL";
  if (const int gpus = detail::gpu_count(); gpus < workers)
    return std::to_string(workers) + " GPUs are needed, there are " + std::to_string(gpus);
  return {};
}

/// Calls `test(options)` for every transport of the CPU and every placement.
template <class Test>
void on_every_transport(int workers, Test&& test) {
  for (const auto& transport : transports())
    on_both_placements([&](Placement placement) {
      const std::string name = transport.name;
      DOCTEST_CAPTURE(name);
      test(TrainerOptions{.backend = transport.config, .num_workers = workers, .placement = placement});
    });
}

/// Calls `test(options)` for NCCL and every placement, where that can run.
template <class Test>
void on_nccl(int workers, Test&& test) {
  if (const auto why = why_not_nccl(workers); !why.empty()) return skip(why);
  on_both_placements([&](Placement placement) {
    test(TrainerOptions{.backend = TorchConfig{.backend = "nccl", .timeout_s = 20},
                        .num_workers = workers,
                        .use_gpu = true,
                        .placement = placement});
  });
}

}  // namespace troupe::test

/// Two test cases with one body, which gets `options`: on every transport of the CPU, and on NCCL. The body puts its
/// tensors on train::torch::get_device().
#define TROUPE_TRANSPORT_CASE(name, workers) TROUPE_TRANSPORT_CASES(DOCTEST_ANONYMOUS(on_transport_), name, workers)
#define TROUPE_TRANSPORT_CASES(body, name, workers)                             \
  static void body(const troupe::TrainerOptions& options);                      \
  DOCTEST_TEST_CASE(name) { troupe::test::on_every_transport(workers, body); }  \
  DOCTEST_TEST_CASE(name ", on NCCL") { troupe::test::on_nccl(workers, body); } \
  static void body(const troupe::TrainerOptions& options)
