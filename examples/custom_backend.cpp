// SPDX-License-Identifier: Apache-2.0
// A backend of your own: hooks that set every worker up before its first run and take it down after the last. This one
// lets the workers agree on a meeting point through the group's store, as a communication library would.
//
//   build/bin/custom_backend [--room 7]
//
// Last line: \["room 7, rank 0 of 2","room 7, rank 1 of 2"\]
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <troupe/troupe.hpp>

#include "example_main.hpp"

// What the user passes as TrainerOptions::backend.
struct RoomConfig {
  int room = 1;
  troupe::BackendConfig to_backend_config() const { return {"room", {{"room", room}}}; }
};

class RoomBackend : public troupe::Backend {
public:
  explicit RoomBackend(int room) : room_(room) {}

  void on_start(const troupe::BackendContext& context) override {
    // Rank 0 says where; all others wait for it. A worker that dies ends the wait.
    const auto key = "room/" + std::to_string(context.epoch);
    if (context.world_rank == 0) context.store->set(key, std::to_string(room_));
    const auto room = context.store->get(key, std::chrono::seconds(10));
    ::setenv("ROOM", room.c_str(), 1);
  }
  void on_shutdown() override { ::unsetenv("ROOM"); }

private:
  int room_;
};

// In a global: worker processes must know it too.
const bool registered = troupe::register_backend(
    "room", [](const troupe::Json& options) { return std::make_unique<RoomBackend>(options.value("room", 1)); });

std::string where() {
  return "room " + std::string(std::getenv("ROOM")) + ", rank " + std::to_string(troupe::train::world_rank()) + " of " +
         std::to_string(troupe::train::world_size());
}

int run(int argc, char** argv) {
  RoomConfig config{.room = 7};
  CLI::App app("Sets workers up with a backend of its own");
  app.add_option("--room", config.room, "Where the workers meet")->capture_default_str();
  parse_flags(app, argc, argv);

  troupe::Trainer trainer({.backend = config, .num_workers = 2});
  std::cout << troupe::Json(trainer.run(troupe::fn<where>)) << "\n";
  return 0;
}

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return example_main(run, argc, argv);
}
