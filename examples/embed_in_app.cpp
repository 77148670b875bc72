// SPDX-License-Identifier: Apache-2.0
// A program that has an actor system of its own lets troupe live in it: two trainers train at once, and an actor of the
// program counts their rounds.
//
//   build/bin/embed_in_app [--num-epochs 3]
//
// Last line: small \[3\], large \[3,3\], rounds 6
#include <future>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <caf/all.hpp>
#include <troupe/embed.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

namespace train = troupe::train;

int train_func(const troupe::Config& config) {
  int epoch = 0;
  for (; epoch < config["num_epochs"]; ++epoch) train::report({{"epoch", epoch}});
  return epoch;
}

// An actor of the program: adds up, and answers with the sum so far.
caf::behavior counter() {
  return {[sum = 0](int amount) mutable { return sum += amount; }};
}

// Reports reach the program's actors through a callback.
class TellCounter : public troupe::TrainingCallback {
public:
  explicit TellCounter(caf::actor to) : to_(std::move(to)) {}
  void handle_result(const std::vector<troupe::Json>&, const troupe::ResultInfo&) override { caf::anon_send(to_, 1); }

private:
  caf::actor to_;
};

int rounds_so_far(caf::actor_system& system, const caf::actor& counting) {
  int rounds = 0;
  caf::scoped_actor self{system};
  self->request(counting, caf::infinite, 0).receive([&](int sum) { rounds = sum; }, [](const caf::error&) {});
  return rounds;
}

int run(int argc, char** argv) {
  int num_epochs = 3;
  CLI::App app("Runs two trainers at once in the program's own actor system");
  app.add_option("--num-epochs", num_epochs, "Epochs of each training")->capture_default_str();
  parse_flags(app, argc, argv);

  caf::actor_system_config config;
  troupe::configure(config);  // before the system is made: adds troupe's messages, changes nothing of yours
  caf::actor_system system{config};
  auto counting = system.spawn(counter);
  {
    // Trainers must end before the system does.
    auto small = troupe::make_trainer(system, {.num_workers = 1});
    auto large = troupe::make_trainer(system, {.num_workers = 2});
    const troupe::RunOptions options{.config = {{"num_epochs", num_epochs}},
                                     .callbacks = {std::make_shared<TellCounter>(counting)}};
    auto other = std::async(std::launch::async, [&] { return small.run(troupe::fn<train_func>, options); });
    const auto results = large.run(troupe::fn<train_func>, options);
    std::cout << "small " << troupe::Json(other.get()) << ", large " << troupe::Json(results);
  }
  std::cout << ", rounds " << rounds_so_far(system, counting) << "\n";
  caf::anon_send_exit(counting, caf::exit_reason::user_shutdown);
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);  // before the program has threads: workers start faster then
  return example_main(run, argc, argv);
}
