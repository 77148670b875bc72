// SPDX-License-Identifier: Apache-2.0
#include "actors/rank_setup.hpp"

namespace troupe {

wire::Setup rank_setup(const local::GroupSpec& spec, const wire::Ranks& ranks) {
  const auto& settings = spec.settings;
  wire::Setup setup;
  setup.ranks = ranks;
  setup.threads = settings.threads_per_worker;
  setup.environment = spec.environment;
  setup.working_directory = spec.working_directory;
  setup.backend = settings.backend.name;
  setup.backend_options = detail::pack(settings.backend.options);
  setup.hook = spec.hook;
  setup.object = spec.object;
  return setup;
}

}  // namespace troupe
