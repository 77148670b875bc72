// SPDX-License-Identifier: Apache-2.0
// The actor system underneath: the host program's, or a private one that all Trainers of the process share.
#pragma once

#include <memory>

#include "actors/node/node.hpp"

namespace caf {
class actor_system;         // NOLINT(readability-identifier-naming)
class actor_system_config;  // NOLINT(readability-identifier-naming)
}  // namespace caf

namespace troupe {

/// Adds our message types and the middleman.
void add_to_config(caf::actor_system_config& config);
/// Throws invalid_option unless the system's config was prepared with add_to_config().
void require_configured(caf::actor_system& system);

/// The private system; made with the first Trainer that needs it, gone with the last. (A static one would be destroyed
/// after the handles it must outlive.) Throws Error(invalid_state) in a fork of the process that has it.
std::shared_ptr<caf::actor_system> shared_system();

/// What a worker process does all its life.
void worker_process_main(const node::WorkerStart& start);

}  // namespace troupe
