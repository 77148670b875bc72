// SPDX-License-Identifier: Apache-2.0
// Where the members of a group wait for each other before they set something up together. No torch here.
#pragma once

#include <string>
#include <vector>

#include <troupe/store.hpp>

namespace troupe {

/// Returns when all members (world ranks) have come to `point`, a name that is used once. Throws deadline that names
/// those who have not.
void meet(Store& store, const std::string& point, int my_rank, const std::vector<int>& members, Store::Timeout timeout);

}  // namespace troupe
