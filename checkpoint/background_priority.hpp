// SPDX-License-Identifier: Apache-2.0
// Lets a thread use only what training leaves over.
#pragma once

namespace troupe::detail {

/// Sets a thread's priority for processor and disk: as low as there is a way back from, or the usual one. `thread` is
/// its gettid(), 0 for the caller. Without the right to raise a priority again it is lowered a little only, so that a
/// busy machine cannot starve a thread that somebody waits for. Best effort.
void set_background_priority(bool low, int thread = 0);

}  // namespace troupe::detail
