// SPDX-License-Identifier: Apache-2.0
// Workers are killed while they work, and the result is the same. Each worker throws points at a square and counts
// those inside the circle; what it has counted is saved in its own part of a checkpoint now and then.
//
//   build/bin/fault_tolerance [--num-workers 2] [--num-rounds 60] [--kill-every 20]
//
// Output: round 20: kill -9 \d+
// Output: round 40: kill -9 \d+
// Output: pi is about 3\.1\d*
// Last line: 2 kills survived, same result as without: yes
#include <csignal>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include <unistd.h>
#include <CLI/CLI.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

// Nothing here knows of failures, but for the first lines: after one, the function starts again, and goes on from the
// latest checkpoint.
std::int64_t count_hits(const troupe::Config& config) {
  std::int64_t hits = 0;
  int round = 0;
  if (auto checkpoint = train::load_checkpoint()) {
    hits = checkpoint->at<std::int64_t>("hits");
    round = checkpoint->at<int>("round");
  }
  while (round < config["num_rounds"]) {
    std::mt19937_64 random(static_cast<std::uint64_t>(1000 * round + train::world_rank()));
    std::uniform_real_distribution<double> coordinate(0, 1);
    for (int i = 0; i < 20'000; ++i) {
      const double x = coordinate(random);
      const double y = coordinate(random);
      hits += x * x + y * y < 1 ? 1 : 0;
    }
    round += 1;
    train::report({{"round", round}, {"pid", ::getpid()}});
    if (round % 5 == 0) train::save_checkpoint({{"hits", hits}, {"round", round}}, {.sharded = true});
  }
  return hits;
}

/// Kills a worker when a round is complete whose number can be divided by `every`; the workers take turns.
class KillWorkers : public troupe::TrainingCallback {
public:
  KillWorkers(int every, int last_round) : every_(every), last_round_(last_round) {}

  void handle_result(const std::vector<troupe::Json>& results, const troupe::ResultInfo&) override {
    const int round = results[0]["round"];
    // A round that was made once more does no harm again.
    if (every_ == 0 || round % every_ != 0 || round == last_round_ || !killed_at_.insert(round).second) return;
    const auto& victim = results[killed_at_.size() % results.size()];
    std::cout << "round " << round << ": kill -9 " << victim["pid"] << "\n";
    ::kill(victim["pid"].get<pid_t>(), SIGKILL);
  }
  std::size_t kills() const { return killed_at_.size(); }

private:
  int every_;
  int last_round_;
  std::set<int> killed_at_;
};

int run(int argc, char** argv) {
  int num_workers = 2;
  int num_rounds = 60;
  int kill_every = 20;
  CLI::App app("Kills workers and counts on");
  app.add_option("--num-workers", num_workers, "Number of workers")->capture_default_str()->check(CLI::Range(1, 64));
  app.add_option("--num-rounds", num_rounds, "Rounds")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--kill-every", kill_every, "Kill a worker every so many rounds; 0: never")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.num_workers = num_workers, .max_retries = -1});
  const auto calm = trainer.run(troupe::fn<count_hits>, {.config = {{"num_rounds", num_rounds}}});
  auto killer = std::make_shared<KillWorkers>(kill_every, num_rounds);
  const auto harmed =
      trainer.run(troupe::fn<count_hits>, {.config = {{"num_rounds", num_rounds}}, .callbacks = {killer}});
  trainer.shutdown();

  double hits = 0;
  for (const auto& result : harmed) hits += result.get<double>();
  std::cout << "pi is about " << 4 * hits / (20'000.0 * num_rounds * num_workers) << "\n";
  std::cout << killer->kills() << " kills survived, same result as without: " << (calm == harmed ? "yes" : "no")
            << "\n";
  return calm == harmed ? 0 : 1;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
