// SPDX-License-Identifier: Apache-2.0
// One rank as its user code sees it: who it is, whether it should stop, where its reports go.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <troupe/json.hpp>

#include "runtime/session/checkpoint_client.hpp"
#include "runtime/session/report_channel.hpp"

namespace troupe::detail {

struct RankInfo {
  int world_rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
};

/// No report may be larger; the call throws.
inline constexpr std::size_t max_payload_bytes = std::size_t{16} << 20;

/// What backends keep for a rank, from one run to the next: a group, say.
class RankData {
public:
  void set(const std::string& name, std::shared_ptr<void> value) {
    std::lock_guard lock(mutex_);
    values_[name] = std::move(value);
  }
  template <class T>
  std::shared_ptr<T> get(const std::string& name) const {
    std::lock_guard lock(mutex_);
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : std::static_pointer_cast<T>(found->second);
  }

private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<void>> values_;
};

class Session {
public:
  /// A rank outside a run: ranks are known, report() is refused.
  explicit Session(RankInfo ranks) : ranks_(ranks) {}
  /// The data that this rank's sessions have in common.
  RankData& data() const { return *data_; }
  void share_data(const Session& other) { data_ = other.data_; }
  /// A rank in a run. `detailed_metrics` adds date, host, address, pid and total time to every report.
  Session(RankInfo ranks, std::shared_ptr<ReportChannel> channel, bool detailed_metrics);

  const RankInfo& ranks() const { return ranks_; }
  bool should_stop() const { return stop_.load(std::memory_order_acquire); }
  void wait_for_stop();
  bool wait_for_stop(std::chrono::milliseconds timeout);
  /// Makes should_stop() true and every report() throw Stopped.
  void stop();
  void report(const Json& metrics);

  /// The attempt's checkpoints go through this; set before the function runs.
  void keep_checkpoints(std::shared_ptr<CheckpointClient> client) { checkpoints_ = std::move(client); }
  /// Throws invalid_state outside a run; `caller` is named then.
  CheckpointClient& checkpoints(const char* caller) const;
  void save_checkpoint(const Checkpoint& state, bool sharded, const Json& metrics);
  std::optional<Checkpoint> load_checkpoint();
  /// The function has ended: what it saved is on its way when this returns.
  void finish() noexcept;

  /// The session of the calling thread, else the one of the process, else null.
  static std::shared_ptr<Session> current();
  /// The same, but throws not_in_worker naming `caller` instead of giving null.
  static std::shared_ptr<Session> require(const char* caller);
  /// Binds a session to the calling thread; gives the previous one.
  static std::shared_ptr<Session> bind(std::shared_ptr<Session> session);
  /// In a worker process every thread belongs to the one rank.
  static void bind_process(std::shared_ptr<Session> session);

private:
  using Clock = std::chrono::steady_clock;
  [[noreturn]] void refuse_outside_run(const char* caller) const;
  void append_report(std::string& out, const Json& metrics, std::string_view packed);

  const RankInfo ranks_;
  std::shared_ptr<RankData> data_ = std::make_shared<RankData>();
  const std::shared_ptr<ReportChannel> channel_;
  std::shared_ptr<CheckpointClient> checkpoints_;
  const bool detailed_metrics_ = false;
  std::atomic<bool> stop_{false};  // written under the mutex: no waiter may miss it
  std::mutex stop_mutex_;
  std::condition_variable stopped_;

  // Changed under the channel's lock.
  std::atomic<std::int64_t> iteration_{0};
  Clock::time_point last_report_ = Clock::now();
  double total_seconds_ = 0;
};

}  // namespace troupe::detail
