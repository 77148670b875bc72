// SPDX-License-Identifier: Apache-2.0
// For programs that have an actor system of their own.
#pragma once

#include <troupe/trainer.hpp>

namespace caf {
class actor_system;
class actor_system_config;
}  // namespace caf

namespace troupe {

/// Adds our message types and the middleman to a config, before the actor system is made from it. Changes neither its
/// scheduler nor its heartbeats.
void configure(caf::actor_system_config& config);

/// A Trainer whose actors live in `system`, which must outlive it. Throws invalid_option when the system was not
/// configured.
Trainer make_trainer(caf::actor_system& system, const TrainerOptions& options);

}  // namespace troupe
