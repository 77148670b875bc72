// SPDX-License-Identifier: Apache-2.0
// Which checkpoints stay: the two with the lowest loss, of four.
//
//   build/bin/checkpoint_strategy [--num-to-keep 2]
//
// Output: kept: loss 1
// Output: kept: loss 2
// Output: best: checkpoint_000003
// Last line: latest: loss 3
#include <iostream>

#include <CLI/CLI.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

void train_func() {
  for (int loss : {2, 4, 1, 3}) train::save_checkpoint({{"loss", loss}});
}

int run(int argc, char** argv) {
  int num_to_keep = 2;
  CLI::App app("Keeps the best checkpoints");
  app.add_option("--num-to-keep", num_to_keep, "How many stay; 0: none on disk")->capture_default_str();
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.num_workers = 2});
  trainer.run(troupe::fn<train_func>,
              {.checkpoint_strategy = {
                   .num_to_keep = num_to_keep, .checkpoint_score_attribute = "loss", .checkpoint_score_order = "min"}});
  trainer.shutdown();

  for (const auto& [checkpoint, metrics] : trainer.best_checkpoints())
    std::cout << "kept: loss " << checkpoint.at<int>("loss") << "\n";
  std::cout << "best: " << trainer.best_checkpoint_path().filename().string() << "\n";
  // The newest is kept too, outside the folder of the best: a run that is started again goes on from it.
  if (auto latest = trainer.latest_checkpoint()) std::cout << "latest: loss " << latest->at<int>("loss") << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
