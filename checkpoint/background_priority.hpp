// SPDX-License-Identifier: Apache-2.0
// Lets a thread use only what training leaves over.
#pragma once

namespace troupe::detail {

/// Lowers a thread's share of the processor a little, for good, and puts its disk requests behind all others until it
/// is called with `low` false: a busy machine must not starve a thread that somebody waits for. `thread` is its
/// gettid(), 0 for the caller. Best effort.
void set_background_priority(bool low, int thread = 0);

}  // namespace troupe::detail
