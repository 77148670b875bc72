// SPDX-License-Identifier: Apache-2.0
#include "actors/node/log_pipe.hpp"

namespace troupe::node {

void LineSplitter::feed(std::string_view data, const Emit& emit) {
  while (!data.empty()) {
    const auto room = max_line - partial_.size();
    const auto newline = data.substr(0, room + 1).find('\n');  // + 1: the newline of a line that is just not too long
    if (newline != std::string_view::npos) {
      emit_with_partial(data.substr(0, newline), emit);
      data.remove_prefix(newline + 1);
    } else if (data.size() > room) {
      emit_with_partial(data.substr(0, room), emit);
      data.remove_prefix(room);
    } else {
      partial_ += data;
      return;
    }
  }
}

void LineSplitter::finish(const Emit& emit) {
  if (!partial_.empty()) {
    emit_with_partial({}, emit);
  }
}

void LineSplitter::emit_with_partial(std::string_view rest, const Emit& emit) {
  if (partial_.empty()) {
    emit(rest);
    return;
  }
  partial_ += rest;
  emit(partial_);
  partial_.clear();
}

}  // namespace troupe::node
