// SPDX-License-Identifier: Apache-2.0
// Where a rank stands, for those who watch it: how far it came, what it waits for, how long it has computed. The rank's
// own threads write, in nanoseconds; whoever carries it to the driver reads. Nobody waits here.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace troupe::detail {

/// Whom a rank waits for.
enum class WaitsFor : std::uint8_t { nobody, group, driver };

/// What a rank does outside the user's own code; always a constant of static storage.
struct Activity {
  WaitsFor waits_for = WaitsFor::nobody;
  const char* name = "";
};

class Progress {
public:
  /// One more thing is done: a report, a collective, a step.
  void made() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

  /// The user's own code when there is no activity.
  const Activity* doing() const noexcept { return doing_.load(std::memory_order_relaxed); }
  /// Time spent waiting for the group.
  std::chrono::nanoseconds waited() const noexcept {
    return std::chrono::nanoseconds(waited_.load(std::memory_order_relaxed));
  }

  /// The rank is busy with `activity` while this lives; its end is progress. Activities may be nested: the outer one
  /// counts.
  class Doing {
  public:
    Doing(Progress& progress, const Activity& activity) noexcept
        : progress_(progress), outer_(progress.doing_.exchange(&activity, std::memory_order_relaxed)) {
      is_timed_ = outer_ == nullptr && activity.waits_for == WaitsFor::group;
      if (is_timed_) begin_ = Clock::now();
    }
    Doing(const Doing&) = delete;
    Doing& operator=(const Doing&) = delete;
    ~Doing() {
      if (is_timed_)
        progress_.waited_.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count(),
                                    std::memory_order_relaxed);
      progress_.doing_.store(outer_, std::memory_order_relaxed);
      progress_.made();
    }

  private:
    using Clock = std::chrono::steady_clock;
    Progress& progress_;
    const Activity* outer_;
    bool is_timed_ = false;
    Clock::time_point begin_;
  };

private:
  std::atomic<std::uint64_t> count_{0};
  std::atomic<const Activity*> doing_{nullptr};
  std::atomic<std::int64_t> waited_{0};
};

}  // namespace troupe::detail
