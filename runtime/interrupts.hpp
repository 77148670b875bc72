// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM end active runs in good order.
#pragma once

#include <memory>

#include "actors/run.hpp"

namespace troupe {

/// Whether runs react to signals at all; set by init().
void enable_interrupts(bool enabled);

/// As long as the result lives, the first Ctrl-C or SIGTERM since then stops the run, the second ends it at once, the
/// third ends the program (in local mode the second). The handlers in place before are restored with the last one. Null
/// when interrupts are not enabled.
std::shared_ptr<void> stop_on_interrupt(const std::shared_ptr<detail::Run>& run);

}  // namespace troupe
