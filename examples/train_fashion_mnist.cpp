// SPDX-License-Identifier: Apache-2.0
// Fashion-MNIST on four workers: a multi-layer perceptron, a data loader that deals samples out, accuracy over the
// whole test set. --data names the folder with the four IDX files, unpacked; without it the program makes a small set
// of the same shape.
//
//   build/bin/train_fashion_mnist [--data DIR] [--num-workers 4] [--num-epochs 3]
//
// Last line: accuracy above 0\.6: yes
#include <torch/torch.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;
namespace metrics = troupe::train::torch::metrics;

constexpr int pixels = 28 * 28;
constexpr int num_classes = 10;

struct Samples {
  torch::Tensor images;  // bytes, [N, 784]
  torch::Tensor labels;  // 64-bit integers, [N]
};

// An IDX file of bytes: a magic number that ends in the number of dimensions, the dimensions (big endian), the bytes.
torch::Tensor read_idx(const std::filesystem::path& path, std::size_t dimensions) {
  const auto refuse = [&](const std::string& why) { throw std::runtime_error(path.string() + ": " + why); };
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse("cannot be opened; --data needs the four files of Fashion-MNIST, unpacked (gunzip)");
  const auto number = [&] {
    std::array<unsigned char, 4> bytes{};
    if (!file.read(reinterpret_cast<char*>(bytes.data()), bytes.size())) refuse("ends inside its header");
    return std::int64_t{bytes[0]} << 24 | std::int64_t{bytes[1]} << 16 | std::int64_t{bytes[2]} << 8 | bytes[3];
  };
  const auto magic = number();
  if (magic >> 16 == 0x1f8b) refuse("is packed; unpack it with gunzip");
  if (magic != static_cast<std::int64_t>(0x800 + dimensions))
    refuse("is not an IDX file of bytes with " + std::to_string(dimensions) + " dimensions");
  std::vector<std::int64_t> shape;
  std::int64_t bytes = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    shape.push_back(number());
    if (shape[i] == 0 || shape[i] > (std::int64_t{1} << 32) / bytes) refuse("has a size that cannot be right");
    bytes *= shape[i];
  }
  const auto header = static_cast<std::int64_t>(4 * (1 + dimensions));
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  if (size != header + bytes)
    refuse("has " + std::to_string(size) + " bytes, but its header says " + std::to_string(header + bytes) +
           ": it is damaged or was not loaded to its end");
  auto tensor = torch::empty(shape, torch::kByte);
  if (!file.read(static_cast<char*>(tensor.data_ptr()), bytes)) refuse("cannot be read");
  return tensor;
}

Samples read_samples(const std::filesystem::path& folder, const std::string& part) {
  const auto images = read_idx(folder / (part + "-images-idx3-ubyte"), 3);
  const auto labels = read_idx(folder / (part + "-labels-idx1-ubyte"), 1).to(torch::kLong);
  if (images.size(1) * images.size(2) != pixels || images.size(0) != labels.size(0) ||
      labels.max().item<std::int64_t>() >= num_classes)
    throw std::runtime_error(folder.string() + ": the images and labels of " + part +
                             " do not belong together: needed are 28 x 28 pixels, a label an image, labels 0 to 9");
  return {images.view({-1, pixels}), labels};
}

// Each class is a pattern of its own under noise.
Samples make_samples(int count, std::uint64_t seed) {
  torch::manual_seed(1);
  const auto patterns = torch::rand({num_classes, pixels});
  torch::manual_seed(seed);
  const auto labels = torch::arange(count) % num_classes;
  const auto noise = torch::rand({count, pixels});
  return {((patterns.index_select(0, labels) + noise) * 127.5).to(torch::kByte), labels};
}

torch::Tensor as_input(const torch::Tensor& images) { return images.to(torch::kFloat) / 255; }

void train_func(const troupe::Config& config) {
  const auto folder = config["data"].get<std::string>();
  const auto training = folder.empty() ? make_samples(2560, 2) : read_samples(folder, "train");
  const auto test = folder.empty() ? make_samples(500, 3) : read_samples(folder, "t10k");

  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(pixels, 512), torch::nn::ReLU(), torch::nn::Linear(512, 512),
                              torch::nn::ReLU(), torch::nn::Linear(512, num_classes));
  model = train::torch::prepare_model(model);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  const auto batch_size = std::max(1, 64 / train::world_size());  // of each worker: 64 together
  auto loader = train::torch::prepare_data_loader({training.images, training.labels},
                                                  {.batch_size = batch_size, .shuffle = true});
  auto test_loader = train::torch::prepare_data_loader({test.images, test.labels}, {.batch_size = 64});

  for (int epoch = 0; epoch < config["num_epochs"]; ++epoch) {
    model->train();
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(model->forward(as_input(images)), labels).backward();
      optimizer.step();
    }
    model->eval();
    torch::NoGradGuard no_grad;
    metrics::Mean loss;
    metrics::Accuracy accuracy;
    for (auto& [images, labels] : test_loader) {
      // The last batch may be filled up so that all workers have equally many; what fills it is not counted.
      const auto count = labels.size(0) - static_cast<std::int64_t>(test_loader.padded());
      if (count == 0) continue;
      const auto scores = model->forward(as_input(images)).narrow(0, 0, count);
      const auto targets = labels.narrow(0, 0, count);
      loss.update(torch::nn::functional::cross_entropy(scores, targets).item<double>(), static_cast<double>(count));
      accuracy.update(scores, targets);
    }
    train::report({{"epoch", epoch}, {"loss", loss.compute()}, {"accuracy", accuracy.compute()}});
  }
}

class PrintEpochs : public troupe::TrainingCallback {
public:
  void handle_result(const std::vector<troupe::Json>& results, const troupe::ResultInfo&) override {
    const auto& metrics = results[0];
    std::cout << "epoch " << metrics["epoch"] << ": loss " << metrics["loss"] << ", accuracy " << metrics["accuracy"]
              << "\n";
  }
};

int run(int argc, char** argv) {
  int num_workers = 4;
  int num_epochs = 3;
  std::string data;
  CLI::App app("Trains a classifier of Fashion-MNIST on several workers");
  app.add_option("--data", data, "Folder with train-images-idx3-ubyte and so on; default: a made-up set");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str();
  app.add_option("--num-epochs", num_epochs, "Passes over the data")->capture_default_str();
  parse_flags(app, argc, argv);
  if (data.empty())
    std::cout << "no --data: training on a made-up set of 2560 images\n";
  else
    data = std::filesystem::absolute(data).string();

  troupe::TorchTrainer trainer(troupe::fn<train_func>,
                               {.train_loop_config = {{"num_epochs", num_epochs}, {"data", data}},
                                .scaling_config = {.num_workers = num_workers},
                                .run_config = {.callbacks = {std::make_shared<PrintEpochs>()}}});
  const auto result = trainer.fit();
  std::cout << "accuracy above 0.6: " << (result.metrics["accuracy"] > 0.6 ? "yes" : "no") << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
