// SPDX-License-Identifier: Apache-2.0
// Millions of reports into a callback that is slower than the workers: memory of every process must stay flat.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <troupe/train.hpp>
#include <troupe/trainer.hpp>

#include "bench/cases.hpp"
#include "bench/processes.hpp"

namespace troupe::bench {
namespace {

constexpr double allowed_growth_mb = 20;

/// Sleeps 1 ms every 100th round, and looks at the memory early and at the end.
class SlowCallback : public TrainingCallback {
public:
  explicit SlowCallback(std::int64_t rounds)
      : first_look_(std::clamp<std::int64_t>(rounds / 10, 1, 50'000)), rounds_(rounds) {}

  void handle_result(const std::vector<Json>&, const ResultInfo& info) override {
    if (info.round % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (info.round == first_look_) before_ = memory_of_tree();
    if (info.round == rounds_) after_ = memory_of_tree();
  }
  const std::map<int, ProcessMemory>& before() const { return before_; }
  const std::map<int, ProcessMemory>& after() const { return after_; }

private:
  std::int64_t first_look_;
  std::int64_t rounds_;
  std::map<int, ProcessMemory> before_;
  std::map<int, ProcessMemory> after_;
};

void report_often(const Config& config) {
  const auto rounds = config["rounds"].get<std::int64_t>();
  const std::string text(config["bytes"].get<std::size_t>(), 'x');
  for (std::int64_t step = 0; step < rounds; ++step) train::report({{"step", step}, {"loss", 0.5}, {"text", text}});
}

/// `bytes`: so much text is in each report.
bool flood(std::int64_t reports, std::size_t bytes) {
  Trainer trainer(trainer_options(2));
  auto callback = std::make_shared<SlowCallback>(reports);
  const auto begin = now_ns();
  trainer.run(fn<report_often>, {.config = {{"rounds", reports}, {"bytes", bytes}}, .callbacks = {callback}});
  const double seconds = ms_since(begin) / 1e3;
  trainer.shutdown();

  bool flat = !callback->before().empty() && callback->before().size() == callback->after().size();
  for (const auto& [pid, before] : callback->before()) {
    const auto after = callback->after().find(pid);
    if (after == callback->after().end()) continue;
    const double growth = after->second.rss_mb - before.rss_mb;
    flat = flat && growth <= allowed_growth_mb;
    std::cout << fmt::format("{:<16} pid {:<8} RSS {:>7.1f} MB -> {:>7.1f} MB ({:+.1f})\n", before.name, pid,
                             before.rss_mb, after->second.rss_mb, growth);
  }
  std::cout << fmt::format("{} rounds with a text of {} bytes in {:.1f} s ({:.0f} rounds/s): memory is {}\n", reports,
                           bytes, seconds, static_cast<double>(reports) / seconds, flat ? "flat" : "NOT FLAT");
  return flat;
}

}  // namespace

bool soak(std::int64_t reports) {
  const bool small = flood(reports, 0);
  // Large ones are bounded by their bytes, not by their number.
  return flood(std::max<std::int64_t>(reports / 20, 10), 10'000) && small;
}

}  // namespace troupe::bench
