// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/dictionary.hpp"

#include <functional>
#include <utility>

namespace troupe::detail {
namespace {

constexpr std::size_t fewest_indexed = 16;  // below, walking is as fast

}  // namespace

std::size_t Dictionary::find(std::string_view key) const {
  if (!slots_.empty()) {
    const auto held = slots_[slot_of(key)];
    return held == 0 ? entries_.size() : held - 1;
  }
  std::size_t place = 0;
  while (place < entries_.size() && entries_[place].first != key) ++place;
  return place;
}

void Dictionary::set(std::string key, CheckpointItem item) {
  const auto place = find(key);
  if (place < entries_.size()) {
    entries_[place].second = std::move(item);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(item));
  if (entries_.size() * 2 > slots_.size())
    rebuild();
  else
    slots_[slot_of(entries_.back().first)] = static_cast<std::uint32_t>(entries_.size());
}

void Dictionary::erase(std::size_t place) {
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(place));
  rebuild();
}

/// The slot that holds `key`, or the free one where it belongs.
std::size_t Dictionary::slot_of(std::string_view key) const {
  const auto mask = slots_.size() - 1;
  auto slot = std::hash<std::string_view>{}(key)&mask;
  while (slots_[slot] != 0 && entries_[slots_[slot] - 1].first != key) slot = (slot + 1) & mask;
  return slot;
}

void Dictionary::rebuild() {
  slots_.clear();
  if (entries_.size() < fewest_indexed) return;
  std::size_t size = 4 * fewest_indexed;
  while (size < entries_.size() * 4) size *= 2;
  slots_.resize(size);
  for (std::size_t place = 0; place < entries_.size(); ++place)
    slots_[slot_of(entries_[place].first)] = static_cast<std::uint32_t>(place + 1);
}

}  // namespace troupe::detail
