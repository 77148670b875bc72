// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "actors/protocols.hpp"

namespace troupe {

/// What a rank of this group is told first, but for the object's arguments: they may be too large for one message.
wire::Setup rank_setup(const local::GroupSpec& spec, const wire::Ranks& ranks);

}  // namespace troupe
