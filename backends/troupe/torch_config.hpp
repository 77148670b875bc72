// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <troupe/options.hpp>

namespace troupe {

/// Settings of the backend "torch": `.backend = troupe::TorchConfig{...}`.
struct TorchConfig {
  /// What carries collectives: "gloo" (CPU tensors), "nccl" (GPU tensors) or "auto": nccl with use_gpu, else gloo.
  std::string backend = "auto";
  /// "env" or "tcp"; both form the group through the driver, without a port of their own.
  std::string init_method = "env";
  /// How long a rank waits for the others in a collective operation. A rank that dies ends the wait at once.
  double timeout_s = 1800;
  /// Address or name of the interface that Gloo binds to; empty: loopback on one host, else the host's first address.
  std::string interface = {};
  /// Ranks of one host exchange tensors through memory they share, and only one rank a host talks to other hosts;
  /// false: everything goes through Gloo.
  bool shared_memory = true;
  /// For tests: the ranks behave as if they were on this many hosts, as equal in size as can be. 0: as they are.
  int pretend_hosts = 0;
  /// Worker processes keep the memory of tensors for later ones instead of giving it back to the system after each use:
  /// steps on CPU are faster, and memory stays near the peak of use.
  bool keep_memory = true;
  /// The trainer fills it in: its GPUs per worker with use_gpu, else 0.
  double gpus_per_worker = 0;

  BackendConfig to_backend_config() const {
    return {"torch",
            {{"backend", backend},
             {"init_method", init_method},
             {"timeout_s", timeout_s},
             {"interface", interface},
             {"shared_memory", shared_memory},
             {"pretend_hosts", pretend_hosts},
             {"keep_memory", keep_memory},
             {"gpus_per_worker", gpus_per_worker}}};
  }
};

}  // namespace troupe
