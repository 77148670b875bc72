// SPDX-License-Identifier: Apache-2.0
#include "actors/spare_pool.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

int SparePool::wanted(engine::Time now) {
  int count = 0;
  while (static_cast<int>(spares_.size()) + count < size_ && starts_.allow(now)) count += 1;
  return count;
}

Spare* SparePool::find(std::uint64_t token) {
  const auto found =
      std::find_if(spares_.begin(), spares_.end(), [&](const Spare& spare) { return spare.token == token; });
  return found == spares_.end() ? nullptr : &*found;
}

const Spare* SparePool::slowest() const {
  const Spare* slowest = nullptr;
  for (const auto& spare : spares_)
    if (!spare.handle && (!slowest || spare.launched < slowest->launched)) slowest = &spare;
  return slowest;
}

std::optional<Spare> SparePool::take() {
  const auto found =
      std::find_if(spares_.begin(), spares_.end(), [](const Spare& spare) { return spare.handle && spare.is_forked; });
  if (found == spares_.end()) return std::nullopt;
  auto spare = std::move(*found);
  spares_.erase(found);
  return spare;
}

void SparePool::remove(std::uint64_t token) {
  std::erase_if(spares_, [&](const Spare& spare) { return spare.token == token; });
}

}  // namespace troupe
