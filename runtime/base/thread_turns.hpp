// SPDX-License-Identifier: Apache-2.0
// How soon a thread runs when others compute on all cores.
#pragma once

namespace troupe::detail {

/// For a thread that does little, and that others wait for: it runs soon after it was woken, instead of when the turn
/// of a computing thread has ended, milliseconds later. It gets no more of the processor than before, so this needs no
/// rights. Linux before 6.12 knows no such wish; nothing changes there.
void take_short_turns() noexcept;

/// As the system has it. A new thread takes after the one that made it.
void take_usual_turns() noexcept;

}  // namespace troupe::detail
