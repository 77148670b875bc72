// SPDX-License-Identifier: Apache-2.0
#include "actors/rank_setup.hpp"

#include <utility>

#include <fmt/format.h>

namespace troupe {

wire::Setup rank_setup(const local::GroupSpec& spec, int rank) {
  const auto& settings = spec.settings;
  wire::Setup setup;
  setup.world_rank = setup.local_rank = rank;
  setup.world_size = setup.local_world_size = settings.world_size;
  setup.threads = settings.threads_per_worker;
  setup.environment = spec.environment;
  for (auto [variable, value] :
       {std::pair{"RANK", rank}, std::pair{"LOCAL_RANK", rank}, std::pair{"NODE_RANK", 0},
        std::pair{"WORLD_SIZE", settings.world_size}, std::pair{"LOCAL_WORLD_SIZE", settings.world_size}})
    setup.environment.push_back(fmt::format("{}={}", variable, value));
  setup.environment.push_back("MASTER_ADDR=127.0.0.1");
  setup.working_directory = spec.working_directory;
  setup.backend = settings.backend.name;
  setup.backend_options = detail::pack(settings.backend.options);
  setup.hook = spec.hook;
  setup.object = spec.object;
  return setup;
}

}  // namespace troupe
