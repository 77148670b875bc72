// SPDX-License-Identifier: Apache-2.0
// Memory of the whole tree: this program, its fork server and two idle workers, libtorch loaded in all.
#include <troupe/trainer.hpp>

#include "bench/cases.hpp"
#include "bench/processes.hpp"

namespace troupe::bench {

double probe_memory(const ProbeRequest& request) {
  Trainer trainer(trainer_options(request.workers));
  trainer.start();
  trainer.execute([] {});  // all are up and wait
  double pss = 0;
  for (const auto& [pid, memory] : memory_of_tree()) pss += memory.pss_mb;
  trainer.shutdown();
  return pss;
}

void bench_memory(const Output& output) {
  const auto samples = repeat(5, [] { return run_probe("memory", 2); });
  output.add({"memory.pss.w2", median(samples), "MB", samples.size(), 200});
}

}  // namespace troupe::bench
