// SPDX-License-Identifier: Apache-2.0
#include <troupe/worker_group.hpp>

#include <fmt/format.h>
#include <troupe/error.hpp>

namespace troupe {

WorkerHandle WorkerGroup::operator[](int rank) const {
  if (rank < 0 || rank >= target_->worker_count())
    throw Error(ErrorCode::invalid_argument, fmt::format("there is no worker {}: this group has workers 0 to {}", rank,
                                                         target_->worker_count() - 1));
  return {target_, rank};
}

}  // namespace troupe
