// SPDX-License-Identifier: Apache-2.0
// Lets those who watch a rank see that it waits for others, and for how long.
#pragma once

#include <memory>
#include <optional>

#include "runtime/session/session.hpp"

namespace troupe {

/// The calling thread's rank is in an operation of its group while this lives.
class Waiting {
public:
  explicit Waiting(const detail::Activity& activity) : session_(detail::Session::current()) {
    if (session_) doing_.emplace(session_->progress(), activity);
  }

private:
  std::shared_ptr<detail::Session> session_;
  std::optional<detail::Progress::Doing> doing_;
};

}  // namespace troupe
