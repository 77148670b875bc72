// SPDX-License-Identifier: Apache-2.0
// What a save that is being written costs the steps of a training: two workers of one thread each.
#include <filesystem>
#include <string>
#include <vector>

#include <troupe/background_saver.hpp>
#include <troupe/train.hpp>
#include <troupe/trainer.hpp>

#include "bench/cases.hpp"

namespace troupe::bench {
namespace {

constexpr std::size_t state_bytes = std::size_t{256} << 20;  ///< of each worker
constexpr int rounds = 5;
constexpr int steps_without = 20;

/// About 10 ms of arithmetic in the processor's caches, as a small layer's forward pass is.
double step() {
  constexpr int size = 192;
  constexpr std::size_t area = std::size_t{size} * size;
  static std::vector<float> a(area, 1.01F);
  static std::vector<float> b(area, 0.99F);
  static std::vector<float> c(area);
  const auto begin = now_ns();
  for (int times = 0; times < 4; ++times)
    for (int i = 0; i < size; ++i)
      for (int k = 0; k < size; ++k)
        for (int j = 0; j < size; ++j) c[i * size + j] += a[i * size + k] * b[k * size + j];
  return ms_since(begin);
}

/// Medians of the steps without and during saves, and how long a save took: `[without, during, save]`.
Json steps_of(const Config& config) {
  const auto folder = std::filesystem::path(config["folder"].get<std::string>()) / std::to_string(train::world_rank());
  const Checkpoint state{{"weights", TensorData::of(std::vector<float>(state_bytes / sizeof(float), 1.5F))}};
  BackgroundSaver saver;
  saver.save(state, folder / "first");  // gets the memory
  saver.flush();
  std::vector<double> without;
  std::vector<double> during;
  std::vector<double> saves;
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < steps_without; ++i) without.push_back(step());
    const auto path = folder / std::to_string(round);
    const auto begin = now_ns();
    saver.save(state, path);
    for (;;) {
      const auto ms = step();
      if (std::filesystem::exists(path / "manifest.json")) break;  // the save ended in this step
      during.push_back(ms);
    }
    saves.push_back(ms_since(begin));
    saver.flush();
    std::filesystem::remove_all(path);
  }
  return {median(without), during.empty() ? 0 : median(during), median(saves)};
}

}  // namespace

void measure_step_slowdown(const Output& output, const std::filesystem::path& folder) {
  Trainer trainer(trainer_options(2));
  double slowdown = 0;
  double save_ms = 0;
  for (const auto& of_rank : trainer.run(fn<steps_of>, {.config = {{"folder", folder.string()}}})) {
    slowdown += of_rank[1].get<double>() / of_rank[0].get<double>() / 2;
    save_ms += of_rank[2].get<double>() / 2;
  }
  output.add({"checkpoint.step_slowdown", slowdown, "x", rounds, 1.10});
  output.add({"checkpoint.step_slowdown.save", save_ms, "ms", rounds, 0, Figure::Better::higher});
}

}  // namespace troupe::bench
