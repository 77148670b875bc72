// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace troupe {

/// What GroupLost says where no better reason is known.
inline constexpr const char* lost_group = "another rank is gone, or the run is being stopped";

}  // namespace troupe
