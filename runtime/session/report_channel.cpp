// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/report_channel.hpp"

#include <algorithm>
#include <utility>

#include <troupe/error.hpp>

namespace troupe::detail {

void ReportChannel::wait_for_room(std::unique_lock<std::mutex>& lock) {
  const auto has_room = [this] {
    return stopped_ || (outstanding_reports_ < window_.reports && outstanding_bytes_ < window_.bytes);
  };
  if (!has_room()) {
    const auto begin = std::chrono::steady_clock::now();
    room_.wait(lock, has_room);
    waited_ += std::chrono::steady_clock::now() - begin;
  }
  if (stopped_) throw Stopped();
}

void ReportChannel::set_origin(ReportOrigin origin) {
  std::lock_guard lock(mutex_);
  buffer_.origin = origin;
}

ReportBurst ReportChannel::take() {
  ReportBurst burst;
  std::lock_guard lock(mutex_);
  burst.origin = buffer_.origin;
  // The replacement gets the capacity that the last burst needed, so a steady flow does not grow it step by step.
  burst.bytes.reserve(buffer_.bytes.size());
  burst.sizes.reserve(buffer_.sizes.size());
  std::swap(burst, buffer_);
  return burst;
}

void ReportChannel::release(std::uint32_t reports, std::size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    outstanding_reports_ -= std::min(outstanding_reports_, reports);
    outstanding_bytes_ -= std::min(outstanding_bytes_, bytes);
  }
  room_.notify_all();
}

void ReportChannel::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  room_.notify_all();
}

}  // namespace troupe::detail
