// SPDX-License-Identifier: Apache-2.0
// A model trained here, used in Python: two workers train and return their weights, the driver writes linear.pt
// (torch.load) and linear.safetensors, export_to_python.py loads both. A file that Python saved comes back the same
// way.
//
//   build/bin/export_to_python [--num-workers 2] [--output .] && python3 examples/export_to_python.py .
//
// Last line: {"epoch":200,"model":{"weight":float32[1,2],"bias":float32[1]}}
// Python script: export_to_python.py
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>
#include <troupe/torch.hpp>
#include <troupe/torch_checkpoint.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

troupe::Checkpoint train_func() {
  torch::manual_seed(train::world_rank());
  const auto x = torch::randn({64, 2});
  const auto y = x.matmul(torch::tensor({{2.0F}, {-1.0F}})) + 0.5F;
  auto model = train::torch::prepare_model(torch::nn::Linear(2, 1));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  int epoch = 0;
  for (; epoch < 200; ++epoch) {
    optimizer.zero_grad();
    torch::mse_loss(model->forward(x), y).backward();
    optimizer.step();
  }
  return {{"epoch", epoch}, {"model", train::torch::state_dict(model)}};
}

int run(int argc, char** argv) {
  int num_workers = 2;
  std::string output = ".";
  CLI::App app("Trains a linear model and writes it for Python");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  app.add_option("--output", output, "Folder of the files")->capture_default_str();
  parse_flags(app, argc, argv);

  const auto folder = std::filesystem::absolute(output);
  troupe::Trainer trainer({.backend = "torch", .num_workers = num_workers});
  trainer.start();
  const auto results = trainer.run(troupe::fn<train_func>);
  const troupe::Checkpoint checkpoint = results.checkpoint(0);  // what rank 0 returned
  checkpoint.export_torch(folder / "linear.pt");
  checkpoint.at<troupe::Checkpoint>("model").export_safetensors(folder / "linear.safetensors");
  trainer.shutdown();
  std::cout << troupe::Checkpoint::import_torch(folder / "linear.pt") << "\n";  // also reads what Python saved
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
