// SPDX-License-Identifier: Apache-2.0
// The ordered dictionary behind Checkpoint: entries in the order given, and fast to look up in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <troupe/checkpoint_item.hpp>

namespace troupe::detail {

class Dictionary {
public:
  const std::vector<CheckpointEntry>& entries() const { return entries_; }
  /// The place of `key`, or entries().size().
  std::size_t find(std::string_view key) const;
  /// Replaces the value under `key`, or appends an entry.
  void set(std::string key, CheckpointItem item);
  void erase(std::size_t place);

private:
  std::size_t slot_of(std::string_view key) const;
  void rebuild();

  std::vector<CheckpointEntry> entries_;
  /// Open addressing: place + 1, or 0 for a free slot. Empty while there are few entries.
  std::vector<std::uint32_t> slots_;
};

}  // namespace troupe::detail
