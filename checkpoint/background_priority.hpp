// SPDX-License-Identifier: Apache-2.0
// Lets a thread use only what training leaves over.
#pragma once

namespace troupe::detail {

/// Sets the calling thread's priority for processor and disk: as low as the system has, or the usual one. Best effort:
/// the way back needs a right that not everybody has, but who waits for the thread leaves a processor free for it.
void set_background_priority(bool low);

}  // namespace troupe::detail
