// SPDX-License-Identifier: Apache-2.0
// The bounded channel between a train function and whoever carries its reports away. What is in it or sent and not yet
// consumed counts against its limits, so a slow consumer slows the function down and memory stays bounded.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::detail {

/// Most a rank may have reported that the driver has not consumed; one report is always allowed, whatever its size.
struct ReportWindow {
  std::uint32_t reports = 1024;
  std::size_t bytes = std::size_t{1} << 20;
};

/// Where the count of an attempt's reports begins.
struct ReportOrigin {
  std::int64_t reports = 0;  ///< made before the checkpoint that the function went on from
  bool resumed = false;      ///< it went on from a checkpoint of its own run
};

/// Reports one after the other.
struct ReportBurst {
  std::string bytes;
  std::vector<std::uint32_t> sizes;
  ReportOrigin origin = {};
};

class ReportChannel {
public:
  /// `wake` is called, outside the lock, when the channel stops being empty.
  ReportChannel(ReportWindow window, std::function<void()> wake) : window_(window), wake_(std::move(wake)) {}

  /// Adds one report that `append(buffer)` writes, under the channel's lock. Waits for room; throws Stopped once the
  /// channel was stopped.
  template <class Append>
  void push(Append&& append) {
    std::unique_lock lock(mutex_);
    wait_for_room(lock);
    const auto before = buffer_.bytes.size();
    append(buffer_.bytes);
    const auto size = buffer_.bytes.size() - before;
    const bool was_empty = buffer_.sizes.empty();
    buffer_.sizes.push_back(static_cast<std::uint32_t>(size));
    outstanding_reports_ += 1;
    outstanding_bytes_ += size;
    lock.unlock();
    if (was_empty) wake_();
  }

  /// How long push() has waited for room, in all; for `append` only.
  std::chrono::nanoseconds waited() const { return waited_; }

  /// Before the first report.
  void set_origin(ReportOrigin origin);
  /// Takes everything that is in the channel.
  ReportBurst take();
  /// The consumer is done with that much.
  void release(std::uint32_t reports, std::size_t bytes);
  /// Ends all waiting: every push() from now on throws Stopped.
  void stop();

private:
  void wait_for_room(std::unique_lock<std::mutex>& lock);

  const ReportWindow window_;
  const std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable room_;
  ReportBurst buffer_;
  std::uint32_t outstanding_reports_ = 0;
  std::size_t outstanding_bytes_ = 0;
  std::chrono::nanoseconds waited_{0};
  bool stopped_ = false;
};

}  // namespace troupe::detail
