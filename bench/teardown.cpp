// SPDX-License-Identifier: Apache-2.0
// How long shutdown() of idle workers takes.
#include <troupe/trainer.hpp>

#include "bench/cases.hpp"

namespace troupe::bench {

void bench_teardown(const Output& output) {
  Trainer trainer(trainer_options(8));
  const auto samples = repeat(20, [&] {
    trainer.start();
    trainer.execute([] {});  // all are up and wait
    const auto begin = now_ns();
    trainer.shutdown();
    return ms_since(begin);
  });
  output.add({"teardown.w8", median(samples), "ms", samples.size(), 100});
}

}  // namespace troupe::bench
