// SPDX-License-Identifier: Apache-2.0
// Cuts the bytes of a pipe into lines, in bounded memory.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace troupe::node {

class LineSplitter {
public:
  /// A longer line is cut here and its rest goes on as the next line.
  static constexpr std::size_t max_line = std::size_t{64} << 10;
  using Emit = std::function<void(std::string_view line)>;

  /// Emits every line that is complete now, without its newline.
  void feed(std::string_view data, const Emit& emit);
  /// Emits what has no newline yet, if there is any.
  void finish(const Emit& emit);

private:
  void emit_with_partial(std::string_view rest, const Emit& emit);

  std::string partial_;
};

}  // namespace troupe::node
